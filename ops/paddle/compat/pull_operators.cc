// box_skip_columns: leaves out the first columns of rows, as the `offset` of PaddleBox's pull does.
// In the gradient these columns are 1, which the push of the rows adds to their counts.
#include <cstring>

#include "paddle/compat/expect.h"

namespace pbx {
namespace {

Shape Skipped(Shape rows, int offset) {
  if (!rows.empty() && rows.back() > offset) rows.back() -= offset;
  return rows;
}

Status Check(const Tensor& rows, int offset) {
  PBX_RETURN_IF_ERROR(Expect(rows, "X", DataType::FLOAT32));
  const Shape& shape = rows.shape();
  if (offset >= 0 && !shape.empty() && shape.back() > offset) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "offset is %d, X has shape %s: expected 0 to one less than "
               "its columns",
               offset, Describe(shape).c_str());
}

std::vector<Tensor> SkipForward(const Tensor& rows, int offset) {
  Tensor out;
  Guard("pull_box_sparse", [&]() -> Status {
    PBX_RETURN_IF_ERROR(Check(rows, offset));
    out = paddle::empty(Skipped(rows.shape(), offset), DataType::FLOAT32, rows.place());
    const size_t width = Size(rows.shape().back());
    const size_t kept = width - Size(offset);
    const float* from = rows.data<float>() + offset;
    float* to = out.data<float>();
    for (size_t i = 0, n = Count(rows) / width; i < n; ++i) {
      std::memcpy(to + i * kept, from + i * width, kept * sizeof(float));
    }
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> SkipBackward(const Tensor& rows, const Tensor& grad, int offset) {
  Tensor drows;
  Guard("pull_box_sparse_grad", [&]() -> Status {
    PBX_RETURN_IF_ERROR(Check(rows, offset));
    PBX_RETURN_IF_ERROR(Expect(grad, "Out@GRAD", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", Skipped(rows.shape(), offset)));
    drows = paddle::full(rows.shape(), 1, DataType::FLOAT32, rows.place());
    const size_t width = Size(rows.shape().back());
    const size_t kept = width - Size(offset);
    const float* from = grad.data<float>();
    float* to = drows.data<float>() + offset;
    for (size_t i = 0, n = Count(rows) / width; i < n; ++i) {
      std::memcpy(to + i * width, from + i * kept, kept * sizeof(float));
    }
    return Status::Ok();
  });
  return {drows};
}

std::vector<Shape> SkipInferShape(const Shape& rows, int offset) { return {Skipped(rows, offset)}; }
std::vector<DataType> SkipInferDtype(const DataType& rows) { return {rows}; }

}  // namespace
}  // namespace pbx

PD_BUILD_OP(box_skip_columns)
    .Inputs({"X"})
    .Outputs({"Out"})
    .Attrs({"offset: int"})
    .SetKernelFn(PD_KERNEL(pbx::SkipForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::SkipInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::SkipInferDtype));

PD_BUILD_GRAD_OP(box_skip_columns)
    .Inputs({"X", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X")})
    .Attrs({"offset: int"})
    .SetKernelFn(PD_KERNEL(pbx::SkipBackward));
