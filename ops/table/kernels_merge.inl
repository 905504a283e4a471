// The first part of a push: the sums of the gradients of a tile of rows. kernels.inl includes it.

// The merged push of a tile of rows, and the fields of these rows that AdaGrad reads.
template <int kDim>
struct Merged {
  size_t tile = 0, count = 0;                           // rows [tile, tile + count) of the plan
  alignas(64) float embedx[kTile][kRoomOf<kDim>] = {};  // zeros after the width
  alignas(64) float weight[kTile] = {};                 // embed_w
  alignas(64) float squares[kTile] = {};                // of embedx
  alignas(64) float show[kTile] = {}, click[kTile] = {};
  alignas(64) float late[kTile] = {};  // GradientView::late
  alignas(64) float row_show[kTile] = {}, row_click[kTile] = {}, row_delta[kTile] = {};
  alignas(64) float row_weight[kTile] = {}, row_g2sum[kTile] = {}, row_x_g2sum[kTile] = {};
  alignas(64) float row_rate[kTile] = {}, row_counted[kTile] = {};
  float by[kTile] = {};  // what weight decay multiplies embedx and expand by
  bool skip[kTile];
};

// Points to the gradient of embed_w; the gradient of embedx follows it.
PBX_INLINE const float* GradientOf(const GradientView& gradient, uint64_t segment,
                                   uint64_t instance) {
  return gradient.grad + segment * gradient.stride + instance * gradient.extra +
         gradient.weights_at;
}

// The sums of a row.
template <int kDim>
struct RowSum {
  typedef float Four __attribute__((vector_size(16)));
  typedef int32_t FourInts __attribute__((vector_size(16)));
  Four counts;  // show, click, embed_w
  Vectors<kDim> embedx;

  PBX_INLINE void Zero() {
    counts = Four{};
    embedx.Zero();
  }
  PBX_INLINE void Keep(int32_t mask) {  // see Vectors
    counts = (Four)((FourInts)counts & mask);
    embedx.Keep(mask);
  }
  PBX_INLINE void Add(const RowSum& more) {
    counts += more.counts;
    embedx.Add(reinterpret_cast<const float*>(more.embedx.v));
  }
  PBX_INLINE void Store(float* to_counts, float* to_embedx) const {
    __builtin_memcpy(to_counts, &counts, sizeof(counts));
    embedx.Store(to_embedx);
  }
};

// Adds the occurrences of a plan to sums. kFactors: they have factors.
template <int kDim, bool kFactors>
struct Occurrences {
  const GradientView& gradient;
  const int32_t* segments;
  int64_t last;  // of the rows that are pushed; later ones are not prefetched
  int dim;
  uint64_t reciprocal;

  PBX_INLINE void operator()(int64_t i, RowSum<kDim>* sum) const {
    PrefetchLater(i);
    Add(i, sum);
  }
  PBX_INLINE void PrefetchLater(int64_t i) const {
    const int64_t ahead = i + static_cast<int64_t>(kAheadSegments);
    if (ahead < last) {
      const uint64_t segment = static_cast<uint32_t>(segments[ahead] & INT32_MAX);
      const float* next = GradientOf(gradient, segment, InstanceOf(segment, reciprocal));
      for (int at = 0; at < dim; at += 16) Prefetch(next + at);
      Prefetch(next + dim);
    }
  }
  PBX_INLINE void Add(int64_t i, RowSum<kDim>* sum) const {
    const uint64_t segment = static_cast<uint32_t>(segments[i] & INT32_MAX);
    const uint64_t instance = InstanceOf(segment, reciprocal);
    const float* show_click = gradient.show_click + instance * gradient.show_click_stride;
    const float* from = GradientOf(gradient, segment, instance);
    const float weight = kFactors ? from[0] * gradient.factors[i] : from[0];
    sum->counts += typename RowSum<kDim>::Four{show_click[0], show_click[1], weight, 0.0f};
    if constexpr (kFactors) {
      sum->embedx.AddScaled(from + 1, gradient.factors[i]);
    } else {
      sum->embedx.Add(from + 1);
    }
  }
};

// Merge for a tile in which a row may have kChunk occurrences: goes row by row. counts: (count, 4).
// Its parameters fit into registers; when it took Occurrences, a push was 4 % slower.
template <int kDim, bool kFactors>
__attribute__((noinline)) void SumFrequent(const GradientView& gradient, const int32_t* segments,
                                           const int32_t* starts, int dim, float* counts,
                                           Merged<kDim>* merged) {
  const Occurrences<kDim, kFactors> add{gradient, segments, starts[merged->count], dim,
                                        ReciprocalOf(gradient.segments_per_instance)};
  RowSum<kDim> sum;
  SetDim(&sum.embedx, dim);
  for (size_t t = 0; t < merged->count; ++t) {
    SumInOrder(starts[t], starts[t + 1], add, &sum);
    sum.Store(counts + 4 * t, merged->embedx[t]);
  }
}

// Sums the gradients of the tile's rows, whose occurrences begin at starts (count + 1). It goes
// occurrence by occurrence, not row by row: each occurrence stores the sum of its row so far, and
// the last store remains. later: rows to prefetch, as many as the tile has.
template <int kDim, bool kFactors>
PBX_INLINE void Merge(const RowBlock& block, const int32_t* later, const int32_t* starts,
                      const Occurrences<kDim, kFactors>& add, Merged<kDim>* merged) {
  alignas(64) float counts[kTile][4];  // show, click, embed_w
  RowSum<kDim> sum;
  SetDim(&sum.embedx, add.dim);
  sum.Zero();
  const int64_t end = starts[merged->count];
  if (end - starts[0] >= kChunk) {
    for (size_t t = 0; t < merged->count; ++t) {
      PrefetchRow<kDim>(block, later[t], 0, block.row_bytes - 1);
    }
    SumFrequent<kDim, kFactors>(add.gradient, add.segments, starts, add.dim, counts[0], merged);
  } else {
    size_t t = SIZE_MAX;
    for (int64_t i = starts[0]; i < end; ++i) {
      add.PrefetchLater(i);
      const int32_t keep = ~(add.segments[i] >> 31);  // 0 at the first occurrence of a row, or -1
      t += static_cast<size_t>(1 + keep);
      PrefetchRow<kDim>(block, later[t], 0, block.row_bytes - 1);
      sum.Keep(keep);
      add.Add(i, &sum);
      sum.Store(counts[t], merged->embedx[t]);
    }
  }
  const float scale = add.gradient.scale;
  Vectors<kRoomOf<kDim>> scaled;
  for (size_t t = 0; t < merged->count; ++t) {
    merged->show[t] = counts[t][0];
    merged->click[t] = counts[t][1];
    merged->weight[t] = counts[t][2] * scale;
    scaled.Load(merged->embedx[t]);
    scaled.Scale(scale);
    scaled.Store(merged->embedx[t]);
    merged->squares[t] = scaled.SumOfSquares();
  }
}

// For the rare row whose sums are not finite. False: the row stays unchanged.
template <int kDim>
bool Mend(const GradientView& gradient, size_t row, int dim, size_t t, Merged<kDim>* merged) {
  float* const embedx = merged->embedx[t];
  bool bad = !rule::Finite(merged->show[t]) || !rule::Finite(merged->click[t]) ||
             !rule::Finite(merged->weight[t]);
  for (int c = 0; c < dim; ++c) bad |= !rule::Finite(embedx[c]);
  if (!bad) return true;  // only a square overflowed
  if (gradient.report != nullptr) gradient.report(gradient.context, row);
  if (gradient.on_bad == BadGrad::kSkip) return false;
  merged->weight[t] = rule::Mended(merged->weight[t], gradient.bound);
  for (int c = 0; c < dim; ++c) embedx[c] = rule::Mended(embedx[c], gradient.bound);
  merged->squares[t] = rule::SumOfSquares(embedx, dim);
  if (!rule::Finite(merged->show[t])) merged->show[t] = 0.0f;
  if (!rule::Finite(merged->click[t])) merged->click[t] = 0.0f;
  return true;
}

// For the rows of the tile whose sums are not finite: marks those that stay unchanged, or replaces
// the values that are not finite (GradientView::on_bad).
template <int kDim>
PBX_INLINE void CheckFinite(const GradientView& gradient, const int32_t* rows, int dim,
                            Merged<kDim>* merged) {
  float worst = 0.0f;  // becomes NaN
  for (size_t t = 0; t < kTile; ++t) {
    worst += (merged->squares[t] + merged->weight[t] + merged->show[t] + merged->click[t]) * 0.0f;
  }
  for (size_t t = 0; t < kTile; ++t) merged->skip[t] = false;
  if (worst == 0.0f) return;
  for (size_t t = 0; t < merged->count; ++t) {
    const float any = merged->squares[t] + merged->weight[t] + merged->show[t] + merged->click[t];
    if (rule::Finite(any)) continue;
    merged->skip[t] = !Mend<kDim>(gradient, static_cast<size_t>(rows[t]), dim, t, merged);
  }
}
