#include "dense/jagged_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/flush_subnormals.h"
#include "dense/attention_rows.h"
#include "dense/matmul.h"

namespace pbx {

namespace {

// Queries of a tile: as many as keep a tile of a long sequence in the cache of a core.
constexpr size_t kRows = 32;
// Most groups of sequences. Each is computed by one thread and sums the gradients of the biases.
constexpr size_t kGroups = 64;

size_t Padded(size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

size_t At(const int32_t* offsets, size_t i) { return static_cast<size_t>(offsets[i]); }

// Some queries of a sequence: neighbouring events, or neighbouring targets.
struct Tile {
  size_t token = 0, rows = 0;  // the first query
  size_t columns = 0;          // events that the queries may see, and a column for a token itself
  size_t stride = 0;           // of a row of weights: columns, padded to kLanes
  struct Row {
    size_t seen = 0, count = 0;  // count: tokens that the query sees
    bool apart = false;  // the last of them is the query itself, which is none of the events
  } row[kRows];
};

Tile TileOf(const JaggedAttention& attention, size_t first_event, size_t token, size_t rows) {
  Tile tile;
  tile.token = token;
  tile.rows = rows;
  for (size_t r = 0; r < rows; ++r) {
    const size_t seen = At(attention.seen, token + r), place = token + r - first_event;
    const bool target = token >= attention.events();
    const bool among = !target && place < seen;
    tile.row[r] = {seen, seen + (among ? 0 : 1), target || place > seen};
    tile.columns = std::max(tile.columns, tile.row[r].count);
  }
  tile.stride = Padded(tile.columns);
  return tile;
}

// The packed keys and values, biases and times of one sequence, in the memory of one thread.
class Sequence {
 public:
  Sequence(const JaggedAttention& attention, const float* q, const float* k, const float* v)
      : attention_(attention), q_(q), k_(k), v_(v) {}

  void Open(size_t number) {
    const size_t begin = At(attention_.offsets, number), end = At(attention_.offsets, number + 1);
    first_ = begin;
    events_ = end - begin;
    length_ = Padded(events_ + 1);
    tiles_.clear();
    AddTiles(begin, end);
    const size_t targets = attention_.events();
    AddTiles(targets + At(attention_.target_offsets, number),
             targets + At(attention_.target_offsets, number + 1));
    if (attention_.buckets > 1) SetTimes();
  }

  size_t first() const { return first_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  size_t key_stride() const { return attention_.heads * attention_.key_width; }
  size_t value_stride() const { return attention_.heads * attention_.value_width; }
  const float* q(size_t token, size_t head) const { return Of(q_, token, head, key()); }
  const float* k(size_t token, size_t head) const { return Of(k_, token, head, key()); }
  const float* v(size_t token, size_t head) const { return Of(v_, token, head, value()); }

  // The events' keys of each head in panels of kLanes keys, each panel (A, kLanes).
  void PackKeys() { Pack(k_, key(), &keys_); }
  void PackValues() { Pack(v_, value(), &values_); }

  // The biases of positions of each head in descending order, so that those of a row ascend with
  // the events: the bias of distance p is at events - p.
  void SetPositions() {
    positions_.assign(attention_.heads * PositionLength(), 0.0f);
    for (size_t h = 0; h < attention_.heads; ++h) {
      const float* from = attention_.position_bias + h * attention_.positions;
      float* to = positions_.data() + h * PositionLength() + events_;
      for (size_t p = 0; p <= events_; ++p) *(to - p) = from[std::min(p, attention_.positions - 1)];
    }
  }
  size_t PositionLength() const { return events_ + length_ + kLanes; }
  // Where the positions of a row start, in an array of PositionLength.
  size_t PositionStart(const Tile::Row& row) const { return events_ - row.seen; }

  void SetBuckets(const Tile& tile) {
    if (attention_.buckets == 1) return;
    buckets_.resize(tile.rows * tile.stride);
    const auto count = static_cast<uint32_t>(attention_.buckets);
    for (size_t r = 0; r < tile.rows; ++r) {
      uint32_t* to = buckets_.data() + r * tile.stride;
      const int64_t from = attention_.times[tile.token + r];
      if (times_fit_) {
        TimeBuckets(tile.stride, static_cast<int32_t>(from - start_), short_times_.data(), count,
                    to);
      } else {
        TimeBuckets(tile.stride, from, times_.data(), count, to);
      }
      if (tile.row[r].apart) to[tile.row[r].seen] = 0;
    }
  }
  const uint32_t* buckets(const Tile& tile, size_t row) const {
    return attention_.buckets == 1 ? nullptr : buckets_.data() + row * tile.stride;
  }

  // q k^T of a tile, and a query times its own key in the column `seen` if it is apart.
  void Keys(const Tile& tile, size_t head, float* to) const {
    Products(tile, head, q(tile.token, head), key(), keys_, k(tile.token, head), to);
  }
  // dout v^T, likewise.
  void Values(const Tile& tile, size_t head, const float* dout, float* to) const {
    Products(tile, head, Of(dout, tile.token, head, value()), value(), values_, v(tile.token, head),
             to);
  }

  void AddBiases(const Tile& tile, size_t head, float* scores) const {
    const float* positions = positions_.data() + head * PositionLength();
    const float* times = attention_.time_bias + head * attention_.buckets;
    for (size_t r = 0; r < tile.rows; ++r) {
      pbx::AddBiases(tile.stride, attention_.scale, positions + PositionStart(tile.row[r]), times,
                     buckets(tile, r), scores + r * tile.stride);
    }
  }

  const float* Of(const float* rows, size_t token, size_t head, size_t width) const {
    return rows + (token * attention_.heads + head) * width;
  }

 private:
  size_t key() const { return attention_.key_width; }
  size_t value() const { return attention_.value_width; }

  void AddTiles(size_t begin, size_t end) {
    for (size_t token = begin; token < end; token += kRows)
      tiles_.push_back(TileOf(attention_, first_, token, std::min(kRows, end - token)));
  }

  void SetTimes() {
    const int64_t* times = attention_.times;
    int64_t lowest = std::numeric_limits<int64_t>::max();
    int64_t highest = std::numeric_limits<int64_t>::min();
    for (const Tile& tile : tiles_) {
      for (size_t r = 0; r < tile.rows; ++r) {
        lowest = std::min(lowest, times[tile.token + r]);
        highest = std::max(highest, times[tile.token + r]);
      }
    }
    // As unsigned numbers, because the difference of two int64 may not be an int64.
    times_fit_ = static_cast<uint64_t>(highest) - static_cast<uint64_t>(lowest) <=
                 static_cast<uint64_t>(std::numeric_limits<int32_t>::max());
    start_ = lowest;
    if (times_fit_) {
      short_times_.assign(length_, 0);
      for (size_t j = 0; j < events_; ++j)
        short_times_[j] = static_cast<int32_t>(times[first_ + j] - lowest);
    } else {
      times_.assign(length_, 0);
      std::copy(times + first_, times + first_ + events_, times_.begin());
    }
  }

  void Pack(const float* from, size_t width, std::vector<float>* to) const {
    to->assign(attention_.heads * width * length_, 0.0f);
    for (size_t h = 0; h < attention_.heads; ++h) {
      float* const head = to->data() + h * width * length_;
      for (size_t j = 0; j < events_; ++j) {
        const float* row = Of(from, first_ + j, h, width);
        float* column = head + j / kLanes * kLanes * width + j % kLanes;
        for (size_t a = 0; a < width; ++a) column[a * kLanes] = row[a];
      }
    }
  }

  // rows (T, H * width) times the packed columns; own: the other factor of a token with itself.
  void Products(const Tile& tile, size_t head, const float* rows, size_t width,
                const std::vector<float>& packed, const float* own, float* to) const {
    const size_t stride = attention_.heads * width;
    std::memset(to, 0, tile.rows * tile.stride * sizeof(float));
    for (size_t j = 0; j < tile.stride; j += kLanes) {
      MatMulAdd(tile.rows, width, kLanes, {rows, stride, 1},
                packed.data() + (head * length_ + j) * width, kLanes, to + j, tile.stride);
    }
    for (size_t r = 0; r < tile.rows; ++r) {
      if (!tile.row[r].apart) continue;
      float sum = 0.0f;
      for (size_t a = 0; a < width; ++a) sum += rows[r * stride + a] * own[r * stride + a];
      to[r * tile.stride + tile.row[r].seen] = sum;
    }
  }

  const JaggedAttention& attention_;
  const float *q_, *k_, *v_;
  size_t first_ = 0, events_ = 0, length_ = 0;  // length: of padded arrays over the events
  std::vector<Tile> tiles_;
  std::vector<float> keys_, values_, positions_;
  bool times_fit_ = true;
  int64_t start_ = 0;
  std::vector<int32_t> short_times_;
  std::vector<int64_t> times_;
  std::vector<uint32_t> buckets_;
};

// Scores become weights: 0 for tokens that a query does not see.
void ScoresToWeights(const JaggedAttention& attention, const Tile& tile, float* scores) {
  for (size_t r = 0; r < tile.rows; ++r) {
    float* row = scores + r * tile.stride;
    const size_t count = tile.row[r].count, padded = Padded(count);
    if (attention.form == AttentionForm::kPointwise) {
      Pointwise(padded, 1.0f / attention.divisor, row);
    } else {
      std::fill(row + count, row + padded, kMaskedScore);
      Softmax(padded, row);
    }
    std::fill(row + count, row + tile.stride, 0.0f);
  }
}

// The gradients of weights become those of scores, and, in the pointwise form, scores weights. In
// the softmax form, `weights` holds the weights.
void ScoresToWeightsBackward(const JaggedAttention& attention, const Tile& tile, float* weights,
                             float* gradients) {
  for (size_t r = 0; r < tile.rows; ++r) {
    float *row = weights + r * tile.stride, *gradient = gradients + r * tile.stride;
    const size_t count = tile.row[r].count, padded = Padded(count);
    if (attention.form == AttentionForm::kPointwise) {
      PointwiseBackward(padded, 1.0f / attention.divisor, row, gradient);
    } else {
      SoftmaxBackward(padded, row, gradient);
    }
    std::fill(row + count, row + tile.stride, 0.0f);
    std::fill(gradient + count, gradient + tile.stride, 0.0f);
  }
}

// The weights of tokens with themselves that no column of the events holds. They become 0.
void TakeSelf(const Tile& tile, float* weights, float* own) {
  for (size_t r = 0; r < tile.rows; ++r) {
    if (!tile.row[r].apart) continue;
    float* const at = weights + r * tile.stride + tile.row[r].seen;
    own[r] = *at;
    *at = 0.0f;
  }
}

// to[r] += own[r] from[r] for each row that is apart.
void AddSelf(const Tile& tile, const float* own, size_t width, size_t stride, const float* from,
             float* to) {
  for (size_t r = 0; r < tile.rows; ++r) {
    if (!tile.row[r].apart) continue;
    for (size_t a = 0; a < width; ++a) to[r * stride + a] += own[r] * from[r * stride + a];
  }
}

// The events that the rows of a tile see: its columns without that of a token apart.
size_t EventsOf(const Tile& tile) {
  size_t events = 0;
  for (size_t r = 0; r < tile.rows; ++r)
    events = std::max(events, tile.row[r].count - (tile.row[r].apart ? 1 : 0));
  return events;
}

class Forward {
 public:
  Forward(const JaggedAttention& attention, const float* q, const float* k, const float* v)
      : attention_(attention), sequence_(attention, q, k, v) {}

  void Run(size_t number, float* out) {
    sequence_.Open(number);
    sequence_.PackKeys();
    sequence_.SetPositions();
    for (const Tile& tile : sequence_.tiles()) {
      sequence_.SetBuckets(tile);
      weights_.resize(tile.rows * tile.stride);
      for (size_t h = 0; h < attention_.heads; ++h) RunTile(tile, h, out);
    }
  }

 private:
  void RunTile(const Tile& tile, size_t head, float* out) {
    float *const weights = weights_.data(), own[kRows];
    sequence_.Keys(tile, head, weights);
    sequence_.AddBiases(tile, head, weights);
    ScoresToWeights(attention_, tile, weights);
    if (attention_.type == GemmType::kBfloat16)
      RoundToBfloat16(tile.rows * tile.stride, weights, weights);
    TakeSelf(tile, weights, own);
    const size_t width = attention_.value_width, stride = sequence_.value_stride();
    float* const to = out + (tile.token * attention_.heads + head) * width;
    MatMulAdd(tile.rows, EventsOf(tile), width, {weights, tile.stride, 1},
              sequence_.v(sequence_.first(), head), stride, to, stride);
    AddSelf(tile, own, width, stride, sequence_.v(tile.token, head), to);
  }

  const JaggedAttention& attention_;
  Sequence sequence_;
  std::vector<float> weights_;
};

class Backward {
 public:
  // gradients.position_bias has `positions` columns.
  Backward(const JaggedAttention& attention, const float* q, const float* k, const float* v,
           const float* dout, const JaggedGradients& gradients, size_t positions)
      : attention_(attention),
        sequence_(attention, q, k, v),
        dout_(dout),
        to_(gradients),
        positions_(positions) {}

  // Adds to the gradients.
  void Run(size_t number) {
    sequence_.Open(number);
    sequence_.PackKeys();
    sequence_.PackValues();
    sequence_.SetPositions();
    position_gradient_.assign(attention_.heads * sequence_.PositionLength(), 0.0f);
    time_gradient_.assign(attention_.heads * attention_.buckets * kChains, 0.0f);
    for (const Tile& tile : sequence_.tiles()) {
      sequence_.SetBuckets(tile);
      weights_.resize(tile.rows * tile.stride);
      gradients_.resize(tile.rows * tile.stride);
      for (size_t h = 0; h < attention_.heads; ++h) RunTile(tile, h);
    }
    AddPositions(number);
    AddTimes();
  }

 private:
  // Neighbouring events are often in one bucket. Sums of their own let their additions overlap.
  static constexpr size_t kChains = 8;

  void RunTile(const Tile& tile, size_t head) {
    float *const weights = weights_.data(), *const gradients = gradients_.data();
    sequence_.Keys(tile, head, weights);
    sequence_.AddBiases(tile, head, weights);
    if (attention_.form == AttentionForm::kSoftmax) ScoresToWeights(attention_, tile, weights);
    sequence_.Values(tile, head, dout_, gradients);
    ScoresToWeightsBackward(attention_, tile, weights, gradients);
    SumBiases(tile, head, gradients);
    Multiply(tile.rows * tile.stride, attention_.scale, gradients);
    if (attention_.type == GemmType::kBfloat16) {
      RoundToBfloat16(tile.rows * tile.stride, weights, weights);
      RoundToBfloat16(tile.rows * tile.stride, gradients, gradients);
    }
    AddProducts(tile, head, weights, gradients);
  }

  void SumBiases(const Tile& tile, size_t head, const float* gradients) {
    float* positions = position_gradient_.data() + head * sequence_.PositionLength();
    float* times = time_gradient_.data() + head * attention_.buckets * kChains;
    for (size_t r = 0; r < tile.rows; ++r) {
      const float* row = gradients + r * tile.stride;
      AddRow(Padded(tile.row[r].count), row, positions + sequence_.PositionStart(tile.row[r]));
      const uint32_t* buckets = sequence_.buckets(tile, r);
      for (size_t j = 0; j < tile.row[r].count; ++j)
        times[(buckets == nullptr ? 0 : buckets[j]) * kChains + j % kChains] += row[j];
    }
  }

  void AddProducts(const Tile& tile, size_t head, float* weights, float* gradients) {
    const size_t a = attention_.key_width, b = attention_.value_width;
    const size_t keys = sequence_.key_stride(), values = sequence_.value_stride();
    float own_weights[kRows], own_gradients[kRows];
    TakeSelf(tile, weights, own_weights);
    TakeSelf(tile, gradients, own_gradients);
    const size_t first = sequence_.first(), events = EventsOf(tile), token = tile.token;
    const float* dout = sequence_.Of(dout_, token, head, b);
    float *dq = Place(to_.q, token, head, a), *dk = Place(to_.k, token, head, a);
    MatMulAdd(tile.rows, events, a, {gradients, tile.stride, 1}, sequence_.k(first, head), keys, dq,
              keys);
    MatMulAdd(events, tile.rows, a, {gradients, 1, tile.stride}, sequence_.q(token, head), keys,
              Place(to_.k, first, head, a), keys);
    MatMulAdd(events, tile.rows, b, {weights, 1, tile.stride}, dout, values,
              Place(to_.v, first, head, b), values);
    AddSelf(tile, own_gradients, a, keys, sequence_.k(token, head), dq);
    AddSelf(tile, own_gradients, a, keys, sequence_.q(token, head), dk);
    AddSelf(tile, own_weights, b, values, dout, Place(to_.v, token, head, b));
  }

  float* Place(float* rows, size_t token, size_t head, size_t width) const {
    return rows + (token * attention_.heads + head) * width;
  }

  void AddPositions(size_t number) {
    const size_t events = At(attention_.offsets, number + 1) - At(attention_.offsets, number);
    for (size_t h = 0; h < attention_.heads; ++h) {
      const float* from = position_gradient_.data() + h * sequence_.PositionLength() + events;
      float* to = to_.position_bias + h * positions_;
      for (size_t p = 0; p <= events; ++p) to[std::min(p, attention_.positions - 1)] += *(from - p);
    }
  }

  void AddTimes() {
    for (size_t i = 0; i < attention_.heads * attention_.buckets; ++i)
      for (size_t chain = 0; chain < kChains; ++chain)
        to_.time_bias[i] += time_gradient_[i * kChains + chain];
  }

  const JaggedAttention& attention_;
  Sequence sequence_;
  const float* dout_;
  const JaggedGradients& to_;
  const size_t positions_;
  std::vector<float> weights_, gradients_, position_gradient_, time_gradient_;
};

// q, k, v and dout, rounded if the type is bfloat16.
class Factors {
 public:
  Factors(GemmType type, ThreadPool* pool) : type_(type), pool_(pool) {}

  const float* Of(const float* values, size_t n) {
    if (type_ == GemmType::kFloat32) return values;
    rounded_.emplace_back(n);
    float* const to = rounded_.back().data();
    pool_->ParallelRanges(n, 1 << 16, [&](size_t begin, size_t end) {
      RoundToBfloat16(end - begin, values + begin, to + begin);
    });
    return to;
  }

 private:
  const GemmType type_;
  ThreadPool* const pool_;
  std::vector<std::vector<float>> rounded_;
};

size_t GroupsOf(const JaggedAttention& attention) { return std::min(attention.sequences, kGroups); }

// The positions that have a gradient, the first ones: no distance exceeds the longest sequence.
size_t PositionsUsed(const JaggedAttention& attention) {
  size_t longest = 0;
  for (size_t u = 0; u < attention.sequences; ++u)
    longest = std::max(longest, At(attention.offsets, u + 1) - At(attention.offsets, u));
  return std::min(attention.positions, longest + 1);
}

// Calls run(group, begin, end) with the sequences of each group. Groups depend on U alone.
template <typename Run>
void ForGroups(const JaggedAttention& attention, ThreadPool* pool, const Run& run) {
  const size_t groups = GroupsOf(attention), sequences = attention.sequences;
  pool->ParallelFor(groups, [&](size_t group) {
    const FlushSubnormals flush;
    run(group, sequences * group / groups, sequences * (group + 1) / groups);
  });
}

Status CheckOffsets(const char* name, const int32_t* offsets, size_t sequences) {
  if (offsets[0] != 0) {
    return Error(Code::kInvalidArgument, "%s: expected 0 as the first value, found %d", name,
                 offsets[0]);
  }
  for (size_t u = 0; u < sequences; ++u) {
    if (offsets[u] <= offsets[u + 1]) continue;
    return Error(Code::kInvalidArgument, "%s: expected ascending values, found %d before %d", name,
                 offsets[u], offsets[u + 1]);
  }
  return Status::Ok();
}

Status CheckSeen(const JaggedAttention& attention, size_t sequence, size_t begin, size_t end) {
  const int32_t most = attention.offsets[sequence + 1] - attention.offsets[sequence];
  for (size_t token = begin; token < end; ++token) {
    const int32_t seen = attention.seen[token];
    if (seen >= 0 && seen <= most) continue;
    return Error(Code::kInvalidArgument,
                 "Seen of token %zu is %d, expected 0 to %d, the events of sequence %zu", token,
                 seen, most, sequence);
  }
  return Status::Ok();
}

}  // namespace

Result<AttentionForm> AttentionFormOf(const std::string& name) {
  if (name == "pointwise") return AttentionForm::kPointwise;
  if (name == "softmax") return AttentionForm::kSoftmax;
  return Error(Code::kInvalidArgument, "form %s, expected pointwise or softmax", name.c_str());
}

Status CheckTokens(const JaggedAttention& attention, size_t tokens) {
  const size_t sequences = attention.sequences;
  PBX_RETURN_IF_ERROR(CheckOffsets("Offsets", attention.offsets, sequences));
  PBX_RETURN_IF_ERROR(CheckOffsets("TargetOffsets", attention.target_offsets, sequences));
  if (attention.tokens() == tokens) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "%zu events and %d targets by the offsets, but Q has %zu tokens", attention.events(),
               attention.target_offsets[sequences], tokens);
}

Status CheckJaggedAttention(const JaggedAttention& attention, size_t tokens) {
  PBX_RETURN_IF_ERROR(CheckTokens(attention, tokens));
  const size_t sequences = attention.sequences, targets = attention.events();
  for (size_t u = 0; u < sequences; ++u) {
    PBX_RETURN_IF_ERROR(
        CheckSeen(attention, u, At(attention.offsets, u), At(attention.offsets, u + 1)));
    PBX_RETURN_IF_ERROR(CheckSeen(attention, u, targets + At(attention.target_offsets, u),
                                  targets + At(attention.target_offsets, u + 1)));
  }
  return Status::Ok();
}

void JaggedAttentionForward(const JaggedAttention& attention, const float* q, const float* k,
                            const float* v, float* out, ThreadPool* pool) {
  const size_t keys = attention.tokens() * attention.heads * attention.key_width;
  const size_t values = attention.tokens() * attention.heads * attention.value_width;
  Factors factors(attention.type, pool);
  q = factors.Of(q, keys);
  k = factors.Of(k, keys);
  v = factors.Of(v, values);
  std::memset(out, 0, values * sizeof(float));
  ForGroups(attention, pool, [&](size_t /*group*/, size_t begin, size_t end) {
    Forward forward(attention, q, k, v);
    for (size_t u = begin; u < end; ++u) forward.Run(u, out);
  });
}

void JaggedAttentionBackward(const JaggedAttention& attention, const float* q, const float* k,
                             const float* v, const float* dout, const JaggedGradients& gradients,
                             ThreadPool* pool) {
  const size_t keys = attention.tokens() * attention.heads * attention.key_width;
  const size_t values = attention.tokens() * attention.heads * attention.value_width;
  Factors factors(attention.type, pool);
  q = factors.Of(q, keys);
  k = factors.Of(k, keys);
  v = factors.Of(v, values);
  dout = factors.Of(dout, values);
  std::memset(gradients.q, 0, keys * sizeof(float));
  std::memset(gradients.k, 0, keys * sizeof(float));
  std::memset(gradients.v, 0, values * sizeof(float));
  // Each group sums the gradients of its biases, and the groups are added in their order.
  const size_t times = attention.heads * attention.buckets, columns = PositionsUsed(attention);
  const size_t positions = attention.heads * columns;
  std::vector<float> sums(GroupsOf(attention) * (times + positions), 0.0f);
  ForGroups(attention, pool, [&](size_t group, size_t begin, size_t end) {
    JaggedGradients own = gradients;
    own.time_bias = sums.data() + group * (times + positions);
    own.position_bias = own.time_bias + times;
    Backward backward(attention, q, k, v, dout, own, columns);
    for (size_t u = begin; u < end; ++u) backward.Run(u);
  });
  std::fill(gradients.time_bias, gradients.time_bias + times, 0.0f);
  std::fill(gradients.position_bias,
            gradients.position_bias + attention.heads * attention.positions, 0.0f);
  for (size_t group = 0; group < GroupsOf(attention); ++group) {
    const float* from = sums.data() + group * (times + positions);
    for (size_t i = 0; i < times; ++i) gradients.time_bias[i] += from[i];
    for (size_t i = 0; i < positions; ++i) {
      const size_t at = i / columns * attention.positions + i % columns;
      gradients.position_bias[at] += from[times + i];
    }
  }
}

}  // namespace pbx
