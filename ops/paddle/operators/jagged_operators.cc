// Operators over sequences that lie one after another, without padding: attention within them
// (dense/jagged_attention.h), and conversions between padded arrays and rows
// (dense/jagged_rows.h). Each kernel checks dtype and shape, then calls one function of ops/dense,
// or of cuda/dense.h. On a GPU, only operators that must know the number of rows check offsets.
#include "paddle/operators/place.h"  // first: see there

#include <algorithm>

#include "dense/jagged_attention.h"
#include "dense/jagged_rows.h"
#include "dense/pool.h"
#include "paddle/operators/kernel_guard.h"
#include "paddle/operators/outputs.h"

namespace pbx {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

Status ExpectRank(const Tensor& tensor, const char* name, size_t rank, const char* expected) {
  if (tensor.shape().size() == rank) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has shape %s, expected %s", name,
               Describe(tensor.shape()).c_str(), expected);
}

// first: see ExpectBeside.
Status ExpectMatrix(const Tensor& first, const Tensor& tensor, const char* name,
                    const char* expected) {
  PBX_RETURN_IF_ERROR(ExpectBeside(first, tensor, name, DataType::FLOAT32));
  return ExpectRank(tensor, name, 2, expected);
}

Status ExpectOffsets(const Tensor& first, const Tensor& offsets, const char* name) {
  PBX_RETURN_IF_ERROR(ExpectBeside(first, offsets, name, DataType::INT32));
  if (offsets.shape().size() == 1 && offsets.numel() > 0) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has shape %s, expected (B + 1)", name,
               Describe(offsets.shape()).c_str());
}

Status CheckPlaces(int places) {
  if (places >= 0) return Status::Ok();
  return Error(Code::kInvalidArgument, "places is %d, expected 0 or more", places);
}

// ---- box_jagged_attention
// Q, K (T, H * A), V (T, H * V), Offsets (U + 1), TargetOffsets (U + 1), Seen (T), Times (T), or
// any shape if N is 1, TimeBias (H, N), PositionBias (H, P) -> Out (T, H * V)

struct AttentionInputs {
  const Tensor &q, &k, &v, &offsets, &target_offsets, &seen, &times, &time_bias, &position_bias;
};

struct AttentionAttributes {
  int heads;
  const std::string& form;
  float scale, divisor;
  bool bfloat16;
};

struct AttentionCall {
  JaggedAttention attention;
  ThreadPool* pool = nullptr;
};

// A matrix with a row for each head.
Status CheckBias(const Tensor& first, const Tensor& bias, const char* name, int heads,
                 size_t* columns) {
  PBX_RETURN_IF_ERROR(ExpectMatrix(first, bias, name, "(H, n)"));
  if (bias.shape()[0] != heads || bias.shape()[1] < 1) {
    return Error(Code::kInvalidArgument, "%s has shape %s, expected (%d, n), a row for each head",
                 name, Describe(bias.shape()).c_str(), heads);
  }
  *columns = Size(bias.shape()[1]);
  return Status::Ok();
}

Status CheckWidths(const AttentionInputs& in, const AttentionAttributes& of,
                   JaggedAttention* attention) {
  PBX_RETURN_IF_ERROR(ExpectMatrix(in.q, in.q, "Q", "(T, H * A)"));
  PBX_RETURN_IF_ERROR(ExpectMatrix(in.q, in.k, "K", "(T, H * A)"));
  PBX_RETURN_IF_ERROR(ExpectShape(in.k, "K", in.q.shape()));
  PBX_RETURN_IF_ERROR(ExpectMatrix(in.q, in.v, "V", "(T, H * V)"));
  PBX_RETURN_IF_ERROR(ExpectShape(in.v, "V", {in.q.shape()[0], in.v.shape()[1]}));
  const int64_t keys = in.q.shape()[1], values = in.v.shape()[1];
  if (of.heads < 1 || keys < 1 || values < 1 || keys % of.heads != 0 || values % of.heads != 0) {
    return Error(Code::kInvalidArgument,
                 "heads is %d, expected a divisor of %ld and %ld, the columns of Q and V", of.heads,
                 static_cast<long>(keys), static_cast<long>(values));
  }
  attention->heads = Size(of.heads);
  attention->key_width = Size(keys / of.heads);
  attention->value_width = Size(values / of.heads);
  return Status::Ok();
}

Status CheckSequences(const AttentionInputs& in, JaggedAttention* attention) {
  const Shape tokens{in.q.shape()[0]};
  const bool on_gpu = IsOnGpu(in.q);
  PBX_RETURN_IF_ERROR(ExpectOffsets(in.q, in.offsets, "Offsets"));
  PBX_RETURN_IF_ERROR(ExpectBeside(in.q, in.target_offsets, "TargetOffsets", DataType::INT32));
  PBX_RETURN_IF_ERROR(ExpectShape(in.target_offsets, "TargetOffsets", in.offsets.shape()));
  attention->sequences = Count(in.offsets) - 1;
  attention->offsets = in.offsets.data<int32_t>();
  attention->target_offsets = in.target_offsets.data<int32_t>();
  if (!on_gpu) PBX_RETURN_IF_ERROR(CheckTokens(*attention, Size(tokens[0])));
  PBX_RETURN_IF_ERROR(ExpectBeside(in.q, in.seen, "Seen", DataType::INT32));
  PBX_RETURN_IF_ERROR(ExpectShape(in.seen, "Seen", tokens));
  if (attention->buckets > 1) {
    PBX_RETURN_IF_ERROR(ExpectBeside(in.q, in.times, "Times", DataType::INT64));
    PBX_RETURN_IF_ERROR(ExpectShape(in.times, "Times", tokens));
    attention->times = in.times.data<int64_t>();
  }
  attention->seen = in.seen.data<int32_t>();
  return on_gpu ? Status::Ok() : CheckJaggedAttention(*attention, Size(tokens[0]));
}

Status CheckAttention(const AttentionInputs& in, const AttentionAttributes& of,
                      AttentionCall* call) {
  JaggedAttention& attention = call->attention;
  Result<AttentionForm> form = AttentionFormOf(of.form);
  if (!form.ok()) return form.status();
  if (!(of.divisor > 0.0f)) {
    return Error(Code::kInvalidArgument, "divisor is %g, expected above 0",
                 static_cast<double>(of.divisor));
  }
  attention.form = form.value();
  attention.type = of.bfloat16 ? GemmType::kBfloat16 : GemmType::kFloat32;
  attention.scale = of.scale;
  attention.divisor = of.divisor;
  PBX_RETURN_IF_ERROR(CheckWidths(in, of, &attention));
  PBX_RETURN_IF_ERROR(CheckBias(in.q, in.time_bias, "TimeBias", of.heads, &attention.buckets));
  PBX_RETURN_IF_ERROR(
      CheckBias(in.q, in.position_bias, "PositionBias", of.heads, &attention.positions));
  attention.time_bias = in.time_bias.data<float>();
  attention.position_bias = in.position_bias.data<float>();
  PBX_RETURN_IF_ERROR(CheckSequences(in, &attention));
  if (IsOnGpu(in.q)) return Status::Ok();
  Result<ThreadPool*> pool = DensePool();
  if (!pool.ok()) return pool.status();
  call->pool = pool.value();
  return Status::Ok();
}

pbx_hbm_attention OnGpu(const JaggedAttention& attention, const Tensor& q) {
  pbx_hbm_attention of{};
  of.softmax = attention.form == AttentionForm::kSoftmax ? 1 : 0;
  of.heads = static_cast<int64_t>(attention.heads);
  of.key_width = static_cast<int64_t>(attention.key_width);
  of.value_width = static_cast<int64_t>(attention.value_width);
  of.scale = attention.scale;
  of.divisor = attention.divisor;
  of.sequences = static_cast<int64_t>(attention.sequences);
  of.tokens = q.shape()[0];
  of.offsets = attention.offsets;
  of.target_offsets = attention.target_offsets;
  of.seen = attention.seen;
  of.buckets = static_cast<int64_t>(attention.buckets);
  of.positions = static_cast<int64_t>(attention.positions);
  of.time_bias = attention.time_bias;
  of.position_bias = attention.position_bias;
  of.times = attention.times;
  of.bfloat16 = attention.type == GemmType::kBfloat16 ? 1 : 0;
  return of;
}

std::vector<Tensor> AttentionForward(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& offsets, const Tensor& target_offsets,
                                     const Tensor& seen, const Tensor& times,
                                     const Tensor& time_bias, const Tensor& position_bias,
                                     int heads, const std::string& form, float scale, float divisor,
                                     bool bfloat16) {
  Tensor out;
  Guard("jagged_attention", [&]() -> Status {
    AttentionCall call;
    PBX_RETURN_IF_ERROR(
        CheckAttention({q, k, v, offsets, target_offsets, seen, times, time_bias, position_bias},
                       {heads, form, scale, divisor, bfloat16}, &call));
    out = NewOutput(v.shape(), v.place());
    if (IsOnGpu(q)) {
      const pbx_hbm_attention on_gpu = OnGpu(call.attention, q);
      return StatusOf(Hbm().attention_forward(&on_gpu, q.data<float>(), k.data<float>(),
                                              v.data<float>(), out.data<float>(), StreamOf(q)),
                      "jagged_attention");
    }
    JaggedAttentionForward(call.attention, q.data<float>(), k.data<float>(), v.data<float>(),
                           out.data<float>(), call.pool);
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> AttentionBackward(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& offsets, const Tensor& target_offsets,
                                      const Tensor& seen, const Tensor& times,
                                      const Tensor& time_bias, const Tensor& position_bias,
                                      const Tensor& grad, int heads, const std::string& form,
                                      float scale, float divisor, bool bfloat16) {
  std::vector<Tensor> made;
  Guard("jagged_attention_grad", [&]() -> Status {
    AttentionCall call;
    PBX_RETURN_IF_ERROR(
        CheckAttention({q, k, v, offsets, target_offsets, seen, times, time_bias, position_bias},
                       {heads, form, scale, divisor, bfloat16}, &call));
    PBX_RETURN_IF_ERROR(ExpectBeside(q, grad, "Out@GRAD", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", v.shape()));
    for (const Tensor* input : {&q, &k, &v, &time_bias, &position_bias})
      made.push_back(NewOutput(input->shape(), input->place()));
    if (IsOnGpu(q)) {
      const pbx_hbm_attention on_gpu = OnGpu(call.attention, q);
      Tensor room = NewOutput({static_cast<int64_t>(Hbm().attention_room(&on_gpu))}, q.place());
      return StatusOf(
          Hbm().attention_backward(&on_gpu, q.data<float>(), k.data<float>(), v.data<float>(),
                                   grad.data<float>(), room.data<float>(), made[0].data<float>(),
                                   made[1].data<float>(), made[2].data<float>(),
                                   made[3].data<float>(), made[4].data<float>(), StreamOf(q)),
          "jagged_attention_grad");
    }
    JaggedAttentionBackward(call.attention, q.data<float>(), k.data<float>(), v.data<float>(),
                            grad.data<float>(),
                            {made[0].data<float>(), made[1].data<float>(), made[2].data<float>(),
                             made[3].data<float>(), made[4].data<float>()},
                            call.pool);
    return Status::Ok();
  });
  return made;
}

std::vector<Shape> AttentionInferShape(const Shape& /*q*/, const Shape& /*k*/, const Shape& v,
                                       const Shape& /*offsets*/, const Shape& /*target_offsets*/,
                                       const Shape& /*seen*/, const Shape& /*times*/,
                                       const Shape& /*time_bias*/, const Shape& /*position_bias*/) {
  return {v};
}
std::vector<DataType> AttentionInferDtype(const DataType& q, const DataType& /*k*/,
                                          const DataType& /*v*/, const DataType& /*offsets*/,
                                          const DataType& /*target_offsets*/,
                                          const DataType& /*seen*/, const DataType& /*times*/,
                                          const DataType& /*time_bias*/,
                                          const DataType& /*position_bias*/) {
  return {q};
}

// ---- box_jagged_offsets
// Lengths (B) or (B, 1), attribute places -> Offsets (B + 1)

std::vector<Tensor> OffsetsForward(const Tensor& lengths, int places) {
  Tensor offsets;
  Guard("jagged_offsets", [&]() -> Status {
    PBX_RETURN_IF_ERROR(ExpectBeside(lengths, lengths, "Lengths", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(CheckPlaces(places));
    const Shape& shape = lengths.shape();
    if (shape.size() != 1 && (shape.size() != 2 || shape[1] != 1)) {
      return Error(Code::kInvalidArgument, "Lengths has shape %s, expected (B) or (B, 1)",
                   Describe(shape).c_str());
    }
    offsets = NewOutput({lengths.numel() + 1}, lengths.place(), DataType::INT32);
    if (IsOnGpu(lengths)) {
      return StatusOf(Hbm().jagged_offsets(lengths.data<float>(), lengths.numel(), places,
                                           offsets.data<int32_t>(), StreamOf(lengths)),
                      "jagged_offsets");
    }
    return OffsetsOf(lengths.data<float>(), Count(lengths), Size(places), offsets.data<int32_t>());
  });
  return {offsets};
}

std::vector<Shape> OffsetsInferShape(const Shape& /*lengths*/, int /*places*/) { return {{-1}}; }
std::vector<DataType> OffsetsInferDtype(const DataType& /*lengths*/) { return {DataType::INT32}; }

// The number of rows of sequences on a GPU, and the rows of the longest one. Waits for the GPU.
Status CountOnGpu(const Tensor& offsets, int32_t* rows, int32_t* most) {
  Tensor room = NewOutput({2}, offsets.place(), DataType::INT32);
  PBX_RETURN_IF_ERROR(
      StatusOf(Hbm().jagged_count(offsets.data<int32_t>(), offsets.numel() - 1,
                                  room.data<int32_t>(), rows, most, StreamOf(offsets)),
               "jagged rows"));
  if (*most >= 0) return Status::Ok();
  return Error(Code::kInvalidArgument,
               *rows == -1 ? "a length of a sequence is not a whole number from 0 to the number of "
                             "its places"
                           : "Offsets: expected ascending values from 0");
}

pbx_hbm_jagged OnGpu(const JaggedRows& rows) {
  return {rows.offsets, static_cast<int64_t>(rows.sequences), static_cast<int64_t>(rows.columns),
          static_cast<int64_t>(rows.rows)};
}

// ---- box_jagged_places
// Offsets (B + 1) -> Places (T) int32

std::vector<Tensor> PlacesForward(const Tensor& offsets) {
  Tensor places;
  Guard("jagged_places", [&]() -> Status {
    PBX_RETURN_IF_ERROR(ExpectOffsets(offsets, offsets, "Offsets"));
    const int32_t* at = offsets.data<int32_t>();
    const size_t sequences = Count(offsets) - 1;
    if (IsOnGpu(offsets)) {
      int32_t found = 0, most = 0;
      PBX_RETURN_IF_ERROR(CountOnGpu(offsets, &found, &most));
      places = NewOutput({found}, offsets.place(), DataType::INT32);
      const pbx_hbm_jagged on_gpu = OnGpu(JaggedRows{at, sequences, 1, Size(found)});
      return StatusOf(Hbm().jagged_places(&on_gpu, places.data<int32_t>(), StreamOf(offsets)),
                      "jagged_places");
    }
    const size_t rows = Size(std::max(at[sequences], 0));
    PBX_RETURN_IF_ERROR(CheckRows(at, sequences, rows));
    places = NewOutput({static_cast<int64_t>(rows)}, offsets.place(), DataType::INT32);
    PlacesOfRows({at, sequences, 1, rows}, places.data<int32_t>());
    return Status::Ok();
  });
  return {places};
}

std::vector<Shape> PlacesInferShape(const Shape& /*offsets*/) { return {{-1}}; }
std::vector<DataType> PlacesInferDtype(const DataType& /*offsets*/) { return {DataType::INT32}; }

// ---- The operators of rows: X and Offsets (B + 1) -> Out

// The rows of a call. `rows`: the rows of its array, or -1 for those of the sequences, and a spare
// one if they have none, because several of Paddle's operators fail on arrays without rows.
// places: the most rows of a sequence, or -1.
Status RowsOf(const Tensor& x, const Tensor& offsets, int64_t columns, int64_t rows, int places,
              JaggedRows* found) {
  PBX_RETURN_IF_ERROR(ExpectOffsets(x, offsets, "Offsets"));
  found->offsets = offsets.data<int32_t>();
  found->sequences = Count(offsets) - 1;
  found->columns = Size(columns);
  if (IsOnGpu(x)) {
    int32_t counted = 0, most = 0;
    if (rows < 0) PBX_RETURN_IF_ERROR(CountOnGpu(offsets, &counted, &most));
    if (places >= 0 && most > places) {
      return Error(Code::kInvalidArgument, "a sequence has %d rows, expected at most %d places",
                   most, places);
    }
    found->rows = Size(rows >= 0 ? rows : std::max(counted, 1));
    return Status::Ok();
  }
  const int32_t used = found->offsets[found->sequences];
  found->rows = Size(rows >= 0 ? rows : std::max(used, 1));
  return CheckRows(found->offsets, found->sequences, found->rows);
}

// x (n, C) of rows of the sequences.
Status CheckRowArray(const Tensor& x, const char* name, const Tensor& offsets, JaggedRows* rows) {
  PBX_RETURN_IF_ERROR(ExpectMatrix(x, x, name, "(T, C)"));
  return RowsOf(x, offsets, x.shape()[1], x.shape()[0], -1, rows);
}

// x (B, C), with a row for each sequence.
Status CheckSequenceArray(const Tensor& x, const char* name, const Tensor& offsets, int64_t rows,
                          JaggedRows* found) {
  PBX_RETURN_IF_ERROR(ExpectMatrix(x, x, name, "(B, C)"));
  PBX_RETURN_IF_ERROR(RowsOf(x, offsets, x.shape()[1], rows, -1, found));
  return ExpectShape(x, name, {static_cast<int64_t>(found->sequences), x.shape()[1]});
}

// x (B, L, C)
Status CheckPadded(const Tensor& x, const char* name, const Tensor& offsets, int places,
                   int64_t rows, JaggedRows* found) {
  PBX_RETURN_IF_ERROR(ExpectBeside(x, x, name, DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectRank(x, name, 3, "(B, L, C)"));
  PBX_RETURN_IF_ERROR(RowsOf(x, offsets, x.shape()[2], rows, places, found));
  PBX_RETURN_IF_ERROR(
      ExpectShape(x, name, {static_cast<int64_t>(found->sequences), places, x.shape()[2]}));
  if (IsOnGpu(x)) return Status::Ok();
  for (size_t b = 0; b < found->sequences; ++b) {
    const int32_t length = found->offsets[b + 1] - found->offsets[b];
    if (length <= places) continue;
    return Error(Code::kInvalidArgument, "sequence %zu has %d rows, expected at most %d places", b,
                 length, places);
  }
  return Status::Ok();
}

RowOrder OrderOf(bool reversed) { return reversed ? RowOrder::kReversed : RowOrder::kSame; }

Tensor NewRows(const JaggedRows& rows, const Tensor& like) {
  return NewOutput({static_cast<int64_t>(rows.rows), static_cast<int64_t>(rows.columns)},
                   like.place());
}

// box_jagged_pack: X (B, L, C) -> Out (T, C)

std::vector<Tensor> PackForward(const Tensor& x, const Tensor& offsets, int places, bool reversed) {
  Tensor out;
  Guard("jagged_pack", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckPadded(x, "X", offsets, places, -1, &rows));
    out = NewRows(rows, x);
    if (IsOnGpu(x)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_pack(&on_gpu, places, reversed ? 1 : 0, x.data<float>(),
                                        out.data<float>(), StreamOf(x)),
                      "jagged_pack");
    }
    PackRows(rows, Size(places), OrderOf(reversed), x.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> PackBackward(const Tensor& x, const Tensor& offsets, const Tensor& grad,
                                 int places, bool reversed) {
  Tensor dx;
  Guard("jagged_pack_grad", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(ExpectMatrix(grad, grad, "Out@GRAD", "(T, C)"));
    dx = NewOutput(x.shape(), x.place());
    PBX_RETURN_IF_ERROR(CheckPadded(dx, "X", offsets, places, grad.shape()[0], &rows));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", {grad.shape()[0], x.shape()[2]}));
    if (IsOnGpu(grad)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_unpack(&on_gpu, places, reversed ? 1 : 0, grad.data<float>(),
                                          dx.data<float>(), StreamOf(grad)),
                      "jagged_pack_grad");
    }
    UnpackRows(rows, Size(places), OrderOf(reversed), grad.data<float>(), dx.data<float>());
    return Status::Ok();
  });
  return {dx};
}

std::vector<Shape> PackInferShape(const Shape& x, const Shape& /*offsets*/, int /*places*/,
                                  bool /*reversed*/) {
  return {{-1, x.empty() ? -1 : x.back()}};
}
std::vector<DataType> RowsInferDtype(const DataType& x, const DataType& /*offsets*/) { return {x}; }

// box_jagged_unpack: X (T, C) -> Out (B, L, C)

std::vector<Tensor> UnpackForward(const Tensor& x, const Tensor& offsets, int places,
                                  bool reversed) {
  Tensor out;
  Guard("jagged_unpack", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckPlaces(places));
    PBX_RETURN_IF_ERROR(CheckRowArray(x, "X", offsets, &rows));
    out = NewOutput({static_cast<int64_t>(rows.sequences), places, x.shape()[1]}, x.place());
    PBX_RETURN_IF_ERROR(CheckPadded(out, "Out", offsets, places, x.shape()[0], &rows));
    if (IsOnGpu(x)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_unpack(&on_gpu, places, reversed ? 1 : 0, x.data<float>(),
                                          out.data<float>(), StreamOf(x)),
                      "jagged_unpack");
    }
    UnpackRows(rows, Size(places), OrderOf(reversed), x.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> UnpackBackward(const Tensor& x, const Tensor& offsets, const Tensor& grad,
                                   int places, bool reversed) {
  Tensor dx;
  Guard("jagged_unpack_grad", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckPadded(grad, "Out@GRAD", offsets, places, x.shape()[0], &rows));
    PBX_RETURN_IF_ERROR(ExpectShape(x, "X", {x.shape()[0], grad.shape()[2]}));
    dx = NewRows(rows, x);
    if (IsOnGpu(grad)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_pack(&on_gpu, places, reversed ? 1 : 0, grad.data<float>(),
                                        dx.data<float>(), StreamOf(grad)),
                      "jagged_unpack_grad");
    }
    PackRows(rows, Size(places), OrderOf(reversed), grad.data<float>(), dx.data<float>());
    return Status::Ok();
  });
  return {dx};
}

std::vector<Shape> UnpackInferShape(const Shape& x, const Shape& /*offsets*/, int places,
                                    bool /*reversed*/) {
  return {{-1, places, x.empty() ? -1 : x.back()}};
}

// box_jagged_repeat: X (B, C) -> Out (T, C)

std::vector<Tensor> RepeatForward(const Tensor& x, const Tensor& offsets) {
  Tensor out;
  Guard("jagged_repeat", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckSequenceArray(x, "X", offsets, -1, &rows));
    out = NewRows(rows, x);
    if (IsOnGpu(x)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_repeat(&on_gpu, x.data<float>(), out.data<float>(), StreamOf(x)),
                      "jagged_repeat");
    }
    RepeatRows(rows, x.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> RepeatBackward(const Tensor& x, const Tensor& offsets, const Tensor& grad) {
  Tensor dx;
  Guard("jagged_repeat_grad", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckRowArray(grad, "Out@GRAD", offsets, &rows));
    PBX_RETURN_IF_ERROR(
        ExpectShape(x, "X", {static_cast<int64_t>(rows.sequences), grad.shape()[1]}));
    dx = NewOutput(x.shape(), x.place());
    if (IsOnGpu(grad)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(
          Hbm().jagged_sum(&on_gpu, grad.data<float>(), dx.data<float>(), StreamOf(grad)),
          "jagged_repeat_grad");
    }
    SumRows(rows, grad.data<float>(), dx.data<float>());
    return Status::Ok();
  });
  return {dx};
}

std::vector<Shape> RepeatInferShape(const Shape& x, const Shape& /*offsets*/) {
  return {{-1, x.empty() ? -1 : x.back()}};
}

// box_jagged_sum: X (T, C) -> Out (B, C)

std::vector<Tensor> SumForward(const Tensor& x, const Tensor& offsets) {
  Tensor out;
  Guard("jagged_sum", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckRowArray(x, "X", offsets, &rows));
    out = NewOutput({static_cast<int64_t>(rows.sequences), x.shape()[1]}, x.place());
    if (IsOnGpu(x)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_sum(&on_gpu, x.data<float>(), out.data<float>(), StreamOf(x)),
                      "jagged_sum");
    }
    SumRows(rows, x.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> SumBackward(const Tensor& x, const Tensor& offsets, const Tensor& grad) {
  Tensor dx;
  Guard("jagged_sum_grad", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckSequenceArray(grad, "Out@GRAD", offsets, x.shape()[0], &rows));
    PBX_RETURN_IF_ERROR(ExpectShape(x, "X", {x.shape()[0], grad.shape()[1]}));
    dx = NewRows(rows, x);
    if (IsOnGpu(grad)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(
          Hbm().jagged_repeat(&on_gpu, grad.data<float>(), dx.data<float>(), StreamOf(grad)),
          "jagged_sum_grad");
    }
    RepeatRows(rows, grad.data<float>(), dx.data<float>());
    return Status::Ok();
  });
  return {dx};
}

std::vector<Shape> SumInferShape(const Shape& x, const Shape& /*offsets*/) {
  return {{-1, x.empty() ? -1 : x.back()}};
}

// box_jagged_softmax: X (T, C) -> Out (T, C)

std::vector<Tensor> SoftmaxForward(const Tensor& x, const Tensor& offsets) {
  Tensor out;
  Guard("jagged_softmax", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckRowArray(x, "X", offsets, &rows));
    out = NewRows(rows, x);
    if (IsOnGpu(x)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(
          Hbm().jagged_softmax(&on_gpu, x.data<float>(), out.data<float>(), StreamOf(x)),
          "jagged_softmax");
    }
    SoftmaxRows(rows, x.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> SoftmaxBackwardKernel(const Tensor& x, const Tensor& offsets, const Tensor& out,
                                          const Tensor& grad) {
  Tensor dx;
  Guard("jagged_softmax_grad", [&]() -> Status {
    JaggedRows rows;
    PBX_RETURN_IF_ERROR(CheckRowArray(grad, "Out@GRAD", offsets, &rows));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", x.shape()));
    PBX_RETURN_IF_ERROR(ExpectShape(out, "Out", x.shape()));
    dx = NewRows(rows, x);
    if (IsOnGpu(grad)) {
      const pbx_hbm_jagged on_gpu = OnGpu(rows);
      return StatusOf(Hbm().jagged_softmax_backward(&on_gpu, out.data<float>(), grad.data<float>(),
                                                    dx.data<float>(), StreamOf(grad)),
                      "jagged_softmax_grad");
    }
    SoftmaxRowsBackward(rows, out.data<float>(), grad.data<float>(), dx.data<float>());
    return Status::Ok();
  });
  return {dx};
}

std::vector<Shape> SoftmaxInferShape(const Shape& x, const Shape& /*offsets*/) { return {x}; }

}  // namespace
}  // namespace pbx

#define PBX_ATTENTION_INPUTS \
  "Q", "K", "V", "Offsets", "TargetOffsets", "Seen", "Times", "TimeBias", "PositionBias"
#define PBX_ATTENTION_ATTRS \
  {"heads: int", "form: std::string", "scale: float", "divisor: float", "bfloat16: bool"}

PD_BUILD_OP(box_jagged_attention)
    .Inputs({PBX_ATTENTION_INPUTS})
    .Outputs({"Out"})
    .Attrs(PBX_ATTENTION_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::AttentionForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::AttentionInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::AttentionInferDtype));

PD_BUILD_GRAD_OP(box_jagged_attention)
    .Inputs({PBX_ATTENTION_INPUTS, paddle::Grad("Out")})
    .Outputs({paddle::Grad("Q"), paddle::Grad("K"), paddle::Grad("V"), paddle::Grad("TimeBias"),
              paddle::Grad("PositionBias")})
    .Attrs(PBX_ATTENTION_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::AttentionBackward));

PD_BUILD_OP(box_jagged_offsets)
    .Inputs({"Lengths"})
    .Outputs({"Offsets"})
    .Attrs({"places: int"})
    .SetKernelFn(PD_KERNEL(pbx::OffsetsForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::OffsetsInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::OffsetsInferDtype));

PD_BUILD_OP(box_jagged_places)
    .Inputs({"Offsets"})
    .Outputs({"Places"})
    .SetKernelFn(PD_KERNEL(pbx::PlacesForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::PlacesInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::PlacesInferDtype));

PD_BUILD_OP(box_jagged_pack)
    .Inputs({"X", "Offsets"})
    .Outputs({"Out"})
    .Attrs({"places: int", "reversed: bool"})
    .SetKernelFn(PD_KERNEL(pbx::PackForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::PackInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::RowsInferDtype));

PD_BUILD_GRAD_OP(box_jagged_pack)
    .Inputs({"X", "Offsets", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .Attrs({"places: int", "reversed: bool"})
    .SetKernelFn(PD_KERNEL(pbx::PackBackward));

PD_BUILD_OP(box_jagged_unpack)
    .Inputs({"X", "Offsets"})
    .Outputs({"Out"})
    .Attrs({"places: int", "reversed: bool"})
    .SetKernelFn(PD_KERNEL(pbx::UnpackForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::UnpackInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::RowsInferDtype));

PD_BUILD_GRAD_OP(box_jagged_unpack)
    .Inputs({"X", "Offsets", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .Attrs({"places: int", "reversed: bool"})
    .SetKernelFn(PD_KERNEL(pbx::UnpackBackward));

PD_BUILD_OP(box_jagged_repeat)
    .Inputs({"X", "Offsets"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(pbx::RepeatForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::RepeatInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::RowsInferDtype));

PD_BUILD_GRAD_OP(box_jagged_repeat)
    .Inputs({"X", "Offsets", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(pbx::RepeatBackward));

PD_BUILD_OP(box_jagged_sum)
    .Inputs({"X", "Offsets"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(pbx::SumForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::SumInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::RowsInferDtype));

PD_BUILD_GRAD_OP(box_jagged_sum)
    .Inputs({"X", "Offsets", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(pbx::SumBackward));

PD_BUILD_OP(box_jagged_softmax)
    .Inputs({"X", "Offsets"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(pbx::SoftmaxForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::SoftmaxInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::RowsInferDtype));

PD_BUILD_GRAD_OP(box_jagged_softmax)
    .Inputs({"X", "Offsets", "Out", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(pbx::SoftmaxBackwardKernel));
