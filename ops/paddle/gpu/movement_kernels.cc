// Kernels that make, copy and rearrange arrays.
#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "paddle/gpu/tensors.h"

namespace pbx::gpu::kernels {

using phi::CustomContext;
using phi::IntArray;
using phi::Scalar;

namespace {

// Copies between arrays of T. from_at, to_at: the first elements.
template <typename T>
void Copy(const CustomContext& context, const Sizes& sizes, const T* from,
          const Sizes& from_strides, T* to, const Sizes& to_strides) {
  Check(CopyStrided(sizes, sizeof(T), from, from_strides, to, to_strides, StreamOf(context)));
}

// Copies an array as it is. In place it does nothing.
template <typename T>
void CopyWhole(const CustomContext& context, const DenseTensor& x, DenseTensor* out) {
  const T* const from = In<T>(x);
  T* const to = Out<T>(context, out);
  if (to == nullptr || from == to) return;
  Check(hbm::CopyOnDevice(to, from, CountOf(x) * sizeof(T), StreamOf(context)));
}

template <typename T>
void SetAll(const CustomContext& context, T value, DenseTensor* out) {
  T* const to = Out<T>(context, out);
  Check(FillWith(&value, sizeof(T), CountOf(*out), to, StreamOf(context)));
}

template <typename T>
void Upload(const CustomContext& context, const T* values, DenseTensor* out) {
  T* const to = Out<T>(context, out);
  // The stream is waited for, because `values` are freed after the call.
  Check(hbm::ToDevice(to, values, CountOf(*out) * sizeof(T), StreamOf(context)));
  Check(hbm::Synchronize(StreamOf(context)));
}

}  // namespace

// ---- New arrays.

template <typename T, typename Context>
void Full(const Context& context, const IntArray& shape, const Scalar& value, phi::DataType,
          DenseTensor* out) {
  out->Resize(common::make_ddim(shape.GetData()));
  SetAll<T>(context, value.to<T>(), out);
}
template <typename T, typename Context>
void FullLike(const Context& context, const DenseTensor& /*x*/, const Scalar& value, phi::DataType,
              DenseTensor* out) {
  SetAll<T>(context, value.to<T>(), out);
}
template <typename T, typename Context>
void AssignValue(const Context& context, const std::vector<int>& shape, phi::DataType,
                 const std::vector<Scalar>& values, DenseTensor* out) {
  out->Resize(common::make_ddim(shape));
  std::vector<char> held(values.size() * sizeof(T));
  T* const data = reinterpret_cast<T*>(held.data());
  for (size_t i = 0; i < values.size(); ++i) data[i] = values[i].to<T>();
  Upload<T>(context, data, out);
}

// Random numbers are drawn on the host, by the generator that Paddle uses there. So a program
// starts from the same parameters on both devices.
template <typename Distribution>
void Draw(const CustomContext& context, int seed, Distribution distribution, DenseTensor* out) {
  std::mt19937_64 own(static_cast<uint64_t>(seed));
  const auto paddles = context.GetHostGenerator()->GetCPUEngine();
  std::mt19937_64& engine = seed != 0 ? own : *paddles;
  std::vector<float> values(CountOf(*out));
  for (float& value : values) value = distribution(engine);
  Upload<float>(context, values.data(), out);
}
template <typename T, typename Context>
void Uniform(const Context& context, const IntArray& shape, phi::DataType, const Scalar& low,
             const Scalar& high, int seed, DenseTensor* out) {
  out->Resize(common::make_ddim(shape.GetData()));
  Draw(context, seed, std::uniform_real_distribution<float>(low.to<float>(), high.to<float>()),
       out);
}
template <typename T, typename Context>
void Gaussian(const Context& context, const IntArray& shape, float mean, float deviation, int seed,
              phi::DataType, DenseTensor* out) {
  out->Resize(common::make_ddim(shape.GetData()));
  Draw(context, seed, std::normal_distribution<float>(mean, deviation), out);
}

template <typename T, typename Context>
void Randint(const Context& context, int low, int high, const IntArray& shape, phi::DataType,
             DenseTensor* out) {
  out->Resize(common::make_ddim(shape.GetData()));
  if (CountOf(*out) != 1) Refuse("randint", "more than one number");
  std::uniform_int_distribution<T> distribution(low, high - 1);
  SetAll<T>(context, distribution(*context.GetHostGenerator()->GetCPUEngine()), out);
}

// ---- Copies.

template <typename T, typename Context>
void Assign(const Context& context, const DenseTensor& x, DenseTensor* out) {
  CopyWhole<T>(context, x, out);
}
template <typename T, typename Context>
void Unsqueeze(const Context& context, const DenseTensor& x, const IntArray& /*axes*/,
               DenseTensor* out) {
  CopyWhole<T>(context, x, out);
}
template <typename T, typename Context>
void Squeeze(const Context& context, const DenseTensor& x, const IntArray& /*axes*/,
             DenseTensor* out) {
  CopyWhole<T>(context, x, out);
}
template <typename T, typename Context>
void UnsqueezeGrad(const Context& context, const DenseTensor& /*x*/, const DenseTensor& dout,
                   DenseTensor* dx) {
  CopyWhole<T>(context, dout, dx);
}
template <typename T, typename Context>
void SqueezeGrad(const Context& context, const DenseTensor& /*x*/, const DenseTensor& dout,
                 const IntArray& /*axes*/, DenseTensor* dx) {
  CopyWhole<T>(context, dout, dx);
}
template <typename T, typename Context>
void CastTo(const Context& context, const DenseTensor& x, phi::DataType type, DenseTensor* out) {
  void* const to = context.Alloc(out, type);
  Check(Cast(TypeOf(x.dtype()), In<T>(x), TypeOf(type), to, CountOf(x), StreamOf(context)));
}
template <typename T, typename Context>
void Contiguous(const Context& context, const DenseTensor& x, DenseTensor* out) {
  auto meta = x.meta();
  meta.strides = meta.calc_strides(out->dims());
  meta.offset = 0;
  out->set_meta(meta);
  Copy(context, SizesOf(x), In<T>(x), common::vectorize(x.strides()), Out<T>(context, out),
       StridesOf(SizesOf(x)));
}
template <typename T, typename Context>
void StridedCopy(const Context& context, const DenseTensor& x, const std::vector<int64_t>& sizes,
                 const std::vector<int64_t>& strides, int64_t offset, DenseTensor* out) {
  auto meta = out->meta();
  meta.strides = common::make_ddim(strides);
  meta.dims = common::make_ddim(sizes);
  meta.offset = static_cast<size_t>(offset);
  out->set_meta(meta);
  Copy(context, SizesOf(x), In<T>(x), common::vectorize(x.strides()), out->data<T>(), strides);
}

// ---- Parts.

// The part of an array that `slice` names: sizes before axes of size 1 are dropped, and its place.
struct Part {
  Sizes sizes;
  int64_t first = 0;
};
Part PartOf(const DenseTensor& x, const std::vector<int64_t>& axes, const IntArray& starts,
            const IntArray& ends) {
  Part part{SizesOf(x)};
  const Sizes strides = StridesOf(part.sizes);
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = AxisOf(axes[i], part.sizes.size());
    const int64_t size = part.sizes[axis];
    const auto place = [&](int64_t at) {
      return std::min(std::max<int64_t>(at < 0 ? at + size : at, 0), size);
    };
    const int64_t begin = place(starts.GetData()[i]), end = place(ends.GetData()[i]);
    part.sizes[axis] = std::max<int64_t>(end - begin, 0);
    part.first += begin * strides[axis];
  }
  return part;
}

template <typename T, typename Context>
void Slice(const Context& context, const DenseTensor& x, const std::vector<int64_t>& axes,
           const IntArray& starts, const IntArray& ends, const std::vector<int64_t>& /*infer*/,
           const std::vector<int64_t>& /*dropped*/, DenseTensor* out) {
  const Part part = PartOf(x, axes, starts, ends);
  Copy(context, part.sizes, In<T>(x) + part.first, StridesOf(SizesOf(x)), Out<T>(context, out),
       StridesOf(part.sizes));
}
template <typename T, typename Context>
void SliceGrad(const Context& context, const DenseTensor& x, const DenseTensor& dout,
               const std::vector<int64_t>& axes, const IntArray& starts, const IntArray& ends,
               const std::vector<int64_t>& /*infer*/, const std::vector<int64_t>& /*dropped*/,
               DenseTensor* dx) {
  const Part part = PartOf(x, axes, starts, ends);
  SetAll<T>(context, T{}, dx);
  Copy(context, part.sizes, In<T>(dout), StridesOf(part.sizes), dx->data<T>() + part.first,
       StridesOf(SizesOf(x)));
}

// Copies each array of `parts` to its place along an axis of `whole` (sizes), or back.
template <typename T, typename Copied>
void ForParts(const Sizes& sizes, size_t axis, const std::vector<Sizes>& parts,
              const Copied& copied) {
  const Sizes strides = StridesOf(sizes);
  int64_t at = 0;
  for (size_t k = 0; k < parts.size(); ++k) {
    copied(k, parts[k], at * strides[axis], strides);
    at += parts[k][axis];
  }
}

template <typename T, typename Context>
void Concat(const Context& context, const std::vector<const DenseTensor*>& x, const Scalar& axis,
            DenseTensor* out) {
  std::vector<Sizes> parts;
  parts.reserve(x.size());
  for (const DenseTensor* one : x) parts.push_back(SizesOf(*one));
  T* const to = Out<T>(context, out);
  const Sizes sizes = SizesOf(*out);
  ForParts<T>(sizes, AxisOf(axis.to<int64_t>(), sizes.size()), parts,
              [&](size_t k, const Sizes& part, int64_t first, const Sizes& strides) {
                Copy(context, part, In<T>(*x[k]), StridesOf(part), to + first, strides);
              });
}
template <typename T, typename Context>
void ConcatGrad(const Context& context, const std::vector<const DenseTensor*>& x,
                const DenseTensor& dout, const Scalar& axis, std::vector<DenseTensor*> dx) {
  std::vector<Sizes> parts;
  parts.reserve(x.size());
  for (const DenseTensor* one : x) parts.push_back(SizesOf(*one));
  const Sizes sizes = SizesOf(dout);
  ForParts<T>(sizes, AxisOf(axis.to<int64_t>(), sizes.size()), parts,
              [&](size_t k, const Sizes& part, int64_t first, const Sizes& strides) {
                if (dx[k] == nullptr || dx[k]->numel() == 0) return;
                Copy(context, part, In<T>(dout) + first, strides, Out<T>(context, dx[k]),
                     StridesOf(part));
              });
}

template <typename T, typename Context>
void Stack(const Context& context, const std::vector<const DenseTensor*>& x, int axis,
           DenseTensor* out) {
  T* const to = Out<T>(context, out);
  const Sizes sizes = SizesOf(*out);
  const size_t at = AxisOf(axis, sizes.size());
  Sizes part = sizes;
  part[at] = 1;
  ForParts<T>(sizes, at, std::vector<Sizes>(x.size(), part),
              [&](size_t k, const Sizes&, int64_t first, const Sizes& strides) {
                Copy(context, part, In<T>(*x[k]), StridesOf(part), to + first, strides);
              });
}
template <typename T, typename Context>
void StackGrad(const Context& context, const DenseTensor& dout, int axis,
               std::vector<DenseTensor*> dx) {
  const Sizes sizes = SizesOf(dout);
  const size_t at = AxisOf(axis, sizes.size());
  Sizes part = sizes;
  part[at] = 1;
  ForParts<T>(sizes, at, std::vector<Sizes>(dx.size(), part),
              [&](size_t k, const Sizes&, int64_t first, const Sizes& strides) {
                if (dx[k] == nullptr) return;
                Copy(context, part, In<T>(dout) + first, strides, Out<T>(context, dx[k]),
                     StridesOf(part));
              });
}

template <typename T, typename Context>
void Split(const Context& context, const DenseTensor& x, const IntArray& /*sections*/,
           const Scalar& axis, std::vector<DenseTensor*> out) {
  std::vector<Sizes> parts;
  parts.reserve(out.size());
  for (const DenseTensor* one : out) parts.push_back(SizesOf(*one));
  const Sizes sizes = SizesOf(x);
  ForParts<T>(sizes, AxisOf(axis.to<int64_t>(), sizes.size()), parts,
              [&](size_t k, const Sizes& part, int64_t first, const Sizes& strides) {
                Copy(context, part, In<T>(x) + first, strides, Out<T>(context, out[k]),
                     StridesOf(part));
              });
}
template <typename T, typename Context>
void SplitWithNum(const Context& context, const DenseTensor& x, int /*num*/, const Scalar& axis,
                  std::vector<DenseTensor*> out) {
  Split<T>(context, x, IntArray(), axis, std::move(out));
}

// ---- Orders.

template <typename T, typename Context>
void Transpose(const Context& context, const DenseTensor& x, const std::vector<int>& axes,
               DenseTensor* out) {
  const Sizes sizes = SizesOf(x), strides = StridesOf(sizes);
  Sizes moved, from;
  for (const int axis : axes) {
    moved.push_back(sizes[AxisOf(axis, sizes.size())]);
    from.push_back(strides[AxisOf(axis, sizes.size())]);
  }
  Copy(context, moved, In<T>(x), from, Out<T>(context, out), StridesOf(moved));
}
template <typename T, typename Context>
void TransposeGrad(const Context& context, const DenseTensor& dout, const std::vector<int>& axes,
                   DenseTensor* dx) {
  std::vector<int> back(axes.size());
  for (size_t d = 0; d < axes.size(); ++d) back[AxisOf(axes[d], axes.size())] = static_cast<int>(d);
  Transpose<T>(context, dout, back, dx);
}

// An array that is repeated along its axes, as one of twice as many axes: the repeats of each axis,
// then the axis.
struct Tiling {
  Sizes sizes, strides;  // of the source; 0 for repeats
};
Tiling TilingOf(Sizes sizes, std::vector<int64_t> repeats) {
  while (sizes.size() < repeats.size()) sizes.insert(sizes.begin(), 1);
  while (repeats.size() < sizes.size()) repeats.insert(repeats.begin(), 1);
  const Sizes strides = StridesOf(sizes);
  Tiling tiling;
  for (size_t d = 0; d < sizes.size(); ++d) {
    tiling.sizes.insert(tiling.sizes.end(), {repeats[d], sizes[d]});
    tiling.strides.insert(tiling.strides.end(), {0, strides[d]});
  }
  return tiling;
}

template <typename T, typename Context>
void Tile(const Context& context, const DenseTensor& x, const IntArray& repeats, DenseTensor* out) {
  const Tiling tiling = TilingOf(SizesOf(x), repeats.GetData());
  Copy(context, tiling.sizes, In<T>(x), tiling.strides, Out<T>(context, out),
       StridesOf(tiling.sizes));
}
template <typename T, typename Context>
void TileGrad(const Context& context, const DenseTensor& x, const DenseTensor& dout,
              const IntArray& repeats, DenseTensor* dx) {
  const Tiling tiling = TilingOf(SizesOf(x), repeats.GetData());
  std::vector<bool> summed(tiling.sizes.size());
  for (size_t d = 0; d < summed.size(); d += 2) summed[d] = tiling.sizes[d] != 1;
  SumOver(context, In<float>(dout), tiling.sizes, summed, 1, Out<float>(context, dx));
}

// ---- Rows by index.

template <typename T, typename Context>
void GatherRows(const Context& context, const DenseTensor& x, const DenseTensor& index,
                const Scalar& axis, DenseTensor* out) {
  const Sizes sizes = SizesOf(x);
  const size_t at = AxisOf(axis.to<int64_t>(), sizes.size());
  const Type type = TypeOf(index.dtype());
  const void* const rows =
      type == Type::kInt32 ? static_cast<const void*>(In<int>(index)) : In<int64_t>(index);
  Sizes gathered = sizes;
  gathered[at] = index.numel();
  if (index.dims().size() == 0) gathered.erase(gathered.begin() + static_cast<int64_t>(at));
  const T absent = std::numeric_limits<T>::quiet_NaN();  // 0 in an integer
  out->Resize(common::make_ddim(gathered));  // the axis was not known before, if it is a tensor
  Check(Gather(In<T>(x), sizeof(T), CountBetween(sizes, 0, at), sizes[at],
               CountBetween(sizes, at + 1, sizes.size()), type, rows, index.numel(), &absent,
               Out<T>(context, out), StreamOf(context)));
}
template <typename T, typename Context>
void GatherRowsGrad(const Context& context, const DenseTensor& x, const DenseTensor& index,
                    const DenseTensor& dout, const Scalar& axis, DenseTensor* dx) {
  const Sizes sizes = SizesOf(x);
  const size_t at = AxisOf(axis.to<int64_t>(), sizes.size());
  const Type type = TypeOf(index.dtype());
  const void* const rows =
      type == Type::kInt32 ? static_cast<const void*>(In<int>(index)) : In<int64_t>(index);
  Check(GatherGrad(In<float>(dout), CountBetween(sizes, 0, at), sizes[at],
                   CountBetween(sizes, at + 1, sizes.size()), type, rows, index.numel(),
                   Out<float>(context, dx), StreamOf(context)));
}

}  // namespace pbx::gpu::kernels

#define PBX_ALL_TYPES bool, int, int64_t, float, double

PBX_REGISTER(full, Full, PBX_ALL_TYPES)
PBX_REGISTER(full_like, FullLike, PBX_ALL_TYPES)
PBX_REGISTER(assign_value, AssignValue, PBX_ALL_TYPES)
PBX_REGISTER(uniform, Uniform, float)
PBX_REGISTER(gaussian, Gaussian, float)
PBX_REGISTER(randint, Randint, int64_t)
PBX_REGISTER(assign, Assign, PBX_ALL_TYPES)
PBX_REGISTER(cast, CastTo, PBX_ALL_TYPES)
PBX_REGISTER(contiguous, Contiguous, PBX_ALL_TYPES)
PBX_REGISTER(strided_copy, StridedCopy, PBX_ALL_TYPES)
PBX_REGISTER(squeeze, Squeeze, PBX_ALL_TYPES)
PBX_REGISTER(squeeze_grad, SqueezeGrad, PBX_ALL_TYPES)
PBX_REGISTER(unsqueeze, Unsqueeze, PBX_ALL_TYPES)
PBX_REGISTER(unsqueeze_grad, UnsqueezeGrad, PBX_ALL_TYPES)
PBX_REGISTER(slice, Slice, PBX_ALL_TYPES)
PBX_REGISTER(slice_grad, SliceGrad, PBX_ALL_TYPES)
PBX_REGISTER(concat, Concat, PBX_ALL_TYPES)
PBX_REGISTER(concat_grad, ConcatGrad, PBX_ALL_TYPES)
PBX_REGISTER(stack, Stack, PBX_ALL_TYPES)
PBX_REGISTER(stack_grad, StackGrad, PBX_ALL_TYPES)
PBX_REGISTER(split, Split, PBX_ALL_TYPES)
PBX_REGISTER(split_with_num, SplitWithNum, PBX_ALL_TYPES)
PBX_REGISTER(transpose, Transpose, PBX_ALL_TYPES)
PBX_REGISTER(transpose_grad, TransposeGrad, PBX_ALL_TYPES)
PBX_REGISTER(tile, Tile, PBX_ALL_TYPES)
PBX_REGISTER(tile_grad, TileGrad, float)
PBX_REGISTER(gather, GatherRows, PBX_ALL_TYPES)
PBX_REGISTER(gather_grad, GatherRowsGrad, float)
