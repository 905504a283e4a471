// Body of kernels_<path>.cc: included once per vector path, inside an anonymous namespace, after
// the target pragma. All headers it uses are included before the pragma, so that no shared inline
// function is compiled for a processor that may not be there.
//
// Each kernel is made for some widths of embedx, where the compiler keeps a row in registers, and
// once for every other (kDim = 0).

constexpr int kMaxDim = 253;
constexpr size_t kTile = 16;           // rows whose scalars are computed together by a push
constexpr size_t kPullTile = 64;       // segments by a pull: 16 are a fifth slower
constexpr size_t kAheadRows = 64;      // rows prefetched before they are used: 32 is a third slower
constexpr size_t kAheadSegments = 64;  // gradients of occurrences: 24 is a fifth slower

// kDim floats as vectors of the compiler's, which become registers of whatever width there is.
template <int kDim>
struct Vectors {
  static constexpr int kWidth = kDim % 16 == 0 ? 16 : (kDim % 8 == 0 ? 8 : 4);
  static constexpr int kCount = kDim / kWidth;
  typedef float Vector __attribute__((vector_size(kWidth * 4)));
  Vector v[kCount];

  PBX_INLINE void Zero() {
    for (int i = 0; i < kCount; ++i) v[i] = Vector{};
  }
  PBX_INLINE void Load(const float* from) { __builtin_memcpy(v, from, sizeof(v)); }
  PBX_INLINE void Store(float* to) const { __builtin_memcpy(to, v, sizeof(v)); }
  PBX_INLINE void Add(const float* from) {
    for (int i = 0; i < kCount; ++i) {
      Vector x;
      __builtin_memcpy(&x, from + i * kWidth, sizeof(x));
      v[i] += x;
    }
  }
  PBX_INLINE void Scale(float by) {
    for (int i = 0; i < kCount; ++i) v[i] *= by;
  }
  // Zero where mask is 0; all bits stay where it is -1.
  PBX_INLINE void Keep(int32_t mask) {
    typedef int32_t Ints __attribute__((vector_size(kWidth * 4)));
    for (int i = 0; i < kCount; ++i) v[i] = (Vector)((Ints)v[i] & mask);
  }
  // from - by * this, clipped: the step of a rule that has one for all weights.
  PBX_INLINE void StepFrom(float by, float low, float high, float* from) const {
    for (int i = 0; i < kCount; ++i) {
      Vector x;
      __builtin_memcpy(&x, from + i * kWidth, sizeof(x));
      x -= by * v[i];
      x = x < low ? Vector{} + low : x;
      x = x > high ? Vector{} + high : x;
      __builtin_memcpy(from + i * kWidth, &x, sizeof(x));
    }
  }
  // rule::SumOfSquares, in registers.
  PBX_INLINE float SumOfSquares() const {
    typedef float Lanes __attribute__((vector_size(32)));
    typedef float Half __attribute__((vector_size(16)));
    float squares[kDim < 8 ? 8 : kDim] = {};
    for (int i = 0; i < kCount; ++i) {
      const Vector square = v[i] * v[i];
      __builtin_memcpy(squares + i * kWidth, &square, sizeof(square));
    }
    Lanes lane;
    __builtin_memcpy(&lane, squares, sizeof(lane));
    for (int i = 8; i < kDim; i += 8) {
      Lanes more;
      __builtin_memcpy(&more, squares + i, sizeof(more));
      lane += more;
    }
    const Half four =
        Half{lane[0], lane[1], lane[2], lane[3]} + Half{lane[4], lane[5], lane[6], lane[7]};
    return (four[0] + four[2]) + (four[1] + four[3]);
  }
};

// The same for a width that is only known at run time.
template <>
struct Vectors<0> {
  float v[kMaxDim];
  int dim;

  PBX_INLINE void Zero() {
    for (int i = 0; i < dim; ++i) v[i] = 0.0f;
  }
  PBX_INLINE void Store(float* to) const {
    for (int i = 0; i < dim; ++i) to[i] = v[i];
  }
  PBX_INLINE void Add(const float* from) {
    for (int i = 0; i < dim; ++i) v[i] += from[i];
  }
  PBX_INLINE void Scale(float by) {
    for (int i = 0; i < dim; ++i) v[i] *= by;
  }
  PBX_INLINE void Keep(int32_t mask) {
    if (mask == 0) Zero();
  }
  PBX_INLINE void Load(const float* from) {
    for (int i = 0; i < dim; ++i) v[i] = from[i];
  }
  PBX_INLINE void StepFrom(float by, float low, float high, float* from) const {
    for (int i = 0; i < dim; ++i) {
      float x = from[i] - by * v[i];
      x = x < low ? low : x;
      from[i] = x > high ? high : x;
    }
  }
  PBX_INLINE float SumOfSquares() const { return rule::SumOfSquares(v, dim); }
};

template <int kDim>
PBX_INLINE void SetDim(Vectors<kDim>* vectors, int dim) {
  if constexpr (kDim == 0) vectors->dim = dim;
}

PBX_INLINE float* RowOf(const RowBlock& block, int32_t id) {
  return reinterpret_cast<float*>(block.rows + static_cast<size_t>(id) * block.row_bytes);
}

// Bytes [first, last] of a row of kDim, with the lines between. Nothing faults on an id of -1.
template <int kDim>
PBX_INLINE void PrefetchRow(const RowBlock& block, int32_t id, size_t first, size_t last) {
  const char* row = block.rows + static_cast<int64_t>(id) * block.row_bytes;
  if constexpr (kDim != 0) {
    for (size_t line = 0; line <= kDim * 4 / 64; ++line)
      __builtin_prefetch(row + first + line * 64);
  } else {
    for (size_t at = first; at < last; at += 64) __builtin_prefetch(row + at);
  }
  __builtin_prefetch(row + last);
}

bool CheckIds(const int32_t* ids, size_t n, size_t rows) {
  const uint32_t limit = static_cast<uint32_t>(rows);  // ids from -1 on, moved up by one
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) bad |= static_cast<uint32_t>(ids[i]) + 1u > limit ? 1u : 0u;
  return bad == 0;
}

bool CheckOffsets(const int32_t* offsets, size_t n) {
  int32_t bad = 0;
  for (size_t i = 0; i < n; ++i) bad |= offsets[i] > offsets[i + 1] ? 1 : 0;
  return bad == 0;
}

template <int kDim>
void PullOf(const RowBlock& block, const int32_t* ids, size_t n, float* out) {
  const RowLayout& layout = block.config->layout;
  const int dim = kDim != 0 ? kDim : layout.embedx_dim;
  const int embedx_at = layout.embedx_at();
  const size_t last_byte = static_cast<size_t>(embedx_at + dim) * 4 - 1;
  for (size_t i = 0; i < n; ++i, out += 3 + dim) {
    if (i + kAheadRows < n) PrefetchRow<kDim>(block, ids[i + kAheadRows], 4, last_byte);
    if (ids[i] < 0) {
      for (int c = 0; c < 3 + dim; ++c) out[c] = 0.0f;
      continue;
    }
    const float* row = RowOf(block, ids[i]);
    out[0] = row[RowLayout::kShow];
    out[1] = row[RowLayout::kClick];
    out[2] = row[RowLayout::kEmbed];
    // Before embedx exists its words are zeros in the row: no branch is needed.
    const float* embedx = row + embedx_at;
    for (int c = 0; c < dim; ++c) out[3 + c] = embedx[c];
  }
}

// What a row of zeros stands for: padding, and feasigns that an evaluation does not find.
alignas(64) constexpr float kNoRow[RowLayout::kEmbed + 2 + 2 * kMaxDim + 2] = {};

// What PullPooled works on.
struct Pooling {
  const RowBlock& block;
  const int32_t* ids;
  const int32_t* offsets;
  int64_t last;  // of the ids, exclusive
  int dim;
  int embedx_at;
  size_t last_byte;  // of a row that is read
  size_t width;      // of a segment of the output
};

// Where the segments of a tile lie in the output: anywhere, or one after another, which spares a
// tenth of a pull.
template <bool kAnywhere>
struct Places {
  float* at[kPullTile];

  PBX_INLINE float* At(size_t t, size_t) const { return at[t]; }
};
template <>
struct Places<false> {
  float* first;

  PBX_INLINE float* At(size_t t, size_t width) const { return first + t * width; }
};

// show and click of each segment of a tile, and then what CVM makes of them: log(show + 1) and
// log(click + 1) - log(show + 1). Side by side, as in rows and in the output: a pull of one
// id a segment took 1.05 times as long with an array of each.
struct Counts {
  static constexpr size_t kPairs = 8;  // in a vector
  alignas(64) float of[kPullTile][2] = {};

  PBX_INLINE void Logs(size_t count) {
    typedef float Floats __attribute__((vector_size(kPairs * 8)));
    typedef uint64_t Pairs __attribute__((vector_size(kPairs * 8)));
    for (size_t first = 0; first < count; first += kPairs) {
      float* const pairs = of[first];
      for (size_t i = 0; i < 2 * kPairs; ++i) pairs[i] = Log(pairs[i] + 1.0f);
      Floats logs;
      __builtin_memcpy(&logs, pairs, sizeof(logs));
      logs -= (Floats)((Pairs)logs << 32);  // 0 from the first of a pair, the first from the second
      __builtin_memcpy(pairs, &logs, sizeof(logs));
    }
  }
};

// Whether the tile's segments have one id each, and each id a row, as most slots of most models do.
PBX_INLINE bool NothingToSum(const int32_t* ids, const int32_t* offsets) {
  int others = 0;
  for (size_t t = 0; t < kPullTile; ++t) others |= (offsets[t + 1] - offsets[t]) ^ 1;
  if (others != 0) return false;
  const int32_t* const here = ids + offsets[0];
  for (size_t t = 0; t < kPullTile; ++t) others |= here[t] < 0 ? 1 : 0;
  return others == 0;
}

template <int kDim, bool kCvm, bool kAnywhere>
PBX_INLINE void CopyTile(const Pooling& pooling, size_t tile, const Places<kAnywhere>& places,
                         Counts* counts) {
  constexpr size_t kWeights = kCvm ? 2 : 0;  // column of embed_w in the output
  const size_t width = kDim != 0 ? kWeights + 1 + kDim : pooling.width;
  const int64_t first = pooling.offsets[tile];
  const int32_t* const ids = pooling.ids + first;
  constexpr int64_t kAhead = kAheadRows;
  const int32_t* const later =
      ids + (first + int64_t{kPullTile} + kAhead <= pooling.last ? kAhead : 0);
  const RowBlock block = pooling.block;  // a copy: writing the output cannot change it
  Vectors<kDim> embedx;
  SetDim(&embedx, pooling.dim);
  for (size_t t = 0; t < kPullTile; ++t) {
    PrefetchRow<kDim>(block, later[t], 4, pooling.last_byte);
    const float* row = RowOf(block, ids[t]);
    float* const target = places.At(t, width);
    if (kCvm) __builtin_memcpy(counts->of[t], row + RowLayout::kShow, sizeof(counts->of[t]));
    // 0 is added as in a sum, which makes 0 of -0: else bits would follow which segments share a
    // tile.
    target[kWeights] = 0.0f + row[RowLayout::kEmbed];
    embedx.Zero();
    embedx.Add(row + pooling.embedx_at);
    embedx.Store(target + kWeights + 1);
  }
}

template <bool kAnywhere>
PBX_INLINE void WriteCvm(size_t count, const Places<kAnywhere>& places, size_t width,
                         Counts* counts) {
  counts->Logs(count);
  for (size_t t = 0; t < count; ++t) {
    __builtin_memcpy(places.At(t, width), counts->of[t], sizeof(counts->of[t]));
  }
}

// Segment by segment, though the processor guesses some of their ends wrong. Id by id, each writing
// the sums of its segment, takes 0.7 of the time where all is in the cache, and 1.16 of it where
// rows and output are not: three times as many stores wait for their lines.
template <int kDim, bool kCvm, bool kAnywhere>
PBX_INLINE void SumTile(const Pooling& pooling, size_t tile, size_t count,
                        const Places<kAnywhere>& places) {
  constexpr size_t kWeights = kCvm ? 2 : 0;
  const size_t width = kDim != 0 ? kWeights + 1 + kDim : pooling.width;
  Counts counts;
  Vectors<kDim> embedx;
  SetDim(&embedx, pooling.dim);
  for (size_t t = 0; t < count; ++t) {
    float* const target = places.At(t, width);
    float show = 0.0f, click = 0.0f, weight = 0.0f;
    embedx.Zero();
    const int64_t stop = pooling.offsets[tile + t + 1];
    for (int64_t i = pooling.offsets[tile + t]; i < stop; ++i) {
      const int64_t later = i + static_cast<int64_t>(kAheadRows);
      PrefetchRow<kDim>(pooling.block, pooling.ids[later < pooling.last ? later : i], 4,
                        pooling.last_byte);
      const int32_t id = pooling.ids[i];
      const float* row = id < 0 ? kNoRow : RowOf(pooling.block, id);
      show += row[RowLayout::kShow];
      click += row[RowLayout::kClick];
      weight += row[RowLayout::kEmbed];
      embedx.Add(row + pooling.embedx_at);
    }
    counts.of[t][0] = show;
    counts.of[t][1] = click;
    target[kWeights] = weight;
    embedx.Store(target + kWeights + 1);
  }
  if (kCvm) WriteCvm(count, places, width, &counts);
}

// segment / segments_per_instance, by the reciprocal of the divisor: exact for 32 bits. 0 stands
// for a divisor of 1.
PBX_INLINE uint64_t ReciprocalOf(size_t segments_per_instance) {
  return segments_per_instance == 1 ? 0 : UINT64_MAX / segments_per_instance + 1;
}
PBX_INLINE uint64_t InstanceOf(uint64_t segment, uint64_t reciprocal) {
  __extension__ using Wide = unsigned __int128;
  return reciprocal == 0 ? segment
                         : static_cast<uint64_t>((static_cast<Wide>(segment) * reciprocal) >> 64);
}

// Where the segments of shared lists lie in the output.
struct SharedTargets {
  const PooledOutput& output;
  size_t width;
  uint64_t reciprocal;

  PBX_INLINE float* Of(int32_t segment) const {
    const uint64_t at = static_cast<uint32_t>(segment);
    return output.out + at * width + InstanceOf(at, reciprocal) * output.extra;
  }

  // Writes the pooled lists of a tile to their other segments, while they are in the cache.
  template <int kDim>
  PBX_INLINE void Spread(const int32_t* first, size_t count, const Places<true>& places,
                         size_t weights_at, int dim) const {
    Vectors<kDim> embedx;
    SetDim(&embedx, dim);
    for (size_t t = 0; t < count; ++t) {
      int32_t segment = output.next[first[t]];
      if (segment < 0) continue;
      const float* const from = places.at[t];
      embedx.Load(from + weights_at + 1);
      for (; segment >= 0; segment = output.next[segment]) {
        float* const target = Of(segment);
        for (size_t c = 0; c <= weights_at; ++c) target[c] = from[c];
        embedx.Store(target + weights_at + 1);
      }
    }
  }
};

// kAnywhere: where segments share lists, or something lies between instances.
template <int kDim, bool kCvm, bool kAnywhere>
void PullPooledAs(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                  size_t end, const PooledOutput& output) {
  const RowLayout& layout = block.config->layout;
  const int dim = kDim != 0 ? kDim : layout.embedx_dim;
  const size_t width = static_cast<size_t>((kCvm ? 3 : 1) + dim);
  const size_t last_byte = static_cast<size_t>(layout.embedx_at() + dim) * 4 - 1;
  const Pooling pooling{block,     ids,  offsets, offsets[end], dim, layout.embedx_at(),
                        last_byte, width};
  const size_t slots = output.slots;
  const SharedTargets shared{output, width, ReciprocalOf(slots)};
  const bool sharing = output.first != nullptr;
  size_t slot = begin % slots;
  float* next = output.out + begin * width + begin / slots * output.extra;
  // The logs of a tile are computed when the next one has been copied: what was stored float by
  // float can be loaded as a vector only once those stores are done, and they wait for their rows.
  Counts counts[2];
  Places<kAnywhere> both[2];
  size_t odd = 0;
  bool waiting = false;  // the other of both for its logs
  for (size_t tile = begin; tile < end; tile += kPullTile) {
    const size_t count = end - tile < kPullTile ? end - tile : kPullTile;
    Places<kAnywhere>& places = both[odd];
    if constexpr (kAnywhere) {
      for (size_t t = 0; sharing && t < count; ++t)
        places.at[t] = shared.Of(output.first[tile + t]);
      for (size_t t = 0; !sharing && t < count; ++t) {
        places.at[t] = next;
        next += width;
        if (++slot != slots) continue;
        slot = 0;
        next += output.extra;
      }
    } else {
      places.first = next;
      next += count * width;
    }
    if (!sharing && count == kPullTile && NothingToSum(ids, offsets + tile)) {
      CopyTile<kDim, kCvm>(pooling, tile, places, &counts[odd]);
      odd ^= 1;
      if (kCvm && waiting) WriteCvm(kPullTile, both[odd], width, &counts[odd]);
      waiting = true;
      continue;
    }
    SumTile<kDim, kCvm>(pooling, tile, count, places);
    if constexpr (kAnywhere) {
      if (sharing) shared.Spread<kDim>(output.first + tile, count, places, kCvm ? 2 : 0, dim);
    }
  }
  odd ^= 1;
  if (kCvm && waiting) WriteCvm(kPullTile, both[odd], width, &counts[odd]);
}

template <int kDim>
void PullPooledOf(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                  size_t end, bool use_cvm, const PooledOutput& output) {
  const bool anywhere = output.extra != 0 || output.first != nullptr;
  const auto with_cvm = anywhere ? PullPooledAs<kDim, true, true> : PullPooledAs<kDim, true, false>;
  const auto without =
      anywhere ? PullPooledAs<kDim, false, true> : PullPooledAs<kDim, false, false>;
  (use_cvm ? with_cvm : without)(block, ids, offsets, begin, end, output);
}

// The merged push of a tile of rows, and what AdaGrad reads of these rows.
template <int kDim>
struct Merged {
  static constexpr int kRoom = kDim != 0 ? kDim : kMaxDim;
  size_t tile = 0, count = 0;  // rows [tile, tile + count) of the plan
  alignas(64) float embedx[kTile][kRoom];
  alignas(64) float weight[kTile] = {};   // embed_w
  alignas(64) float squares[kTile] = {};  // of embedx
  alignas(64) float show[kTile] = {}, click[kTile] = {};
  alignas(64) float row_show[kTile] = {}, row_click[kTile] = {}, row_delta[kTile] = {};
  alignas(64) float row_weight[kTile] = {}, row_g2sum[kTile] = {}, row_x_g2sum[kTile] = {};
  alignas(64) float row_rate[kTile] = {}, row_counted[kTile] = {};
  bool skip[kTile];
};

// The gradient of embed_w, with that of embedx behind it.
PBX_INLINE const float* GradientOf(const GradientView& gradient, uint64_t segment,
                                   uint64_t instance) {
  return gradient.grad + segment * gradient.stride + instance * gradient.extra +
         gradient.weights_at;
}

// Sums the gradients of the tile's rows, whose occurrences are segments[begin, end). Occurrence by
// occurrence, and not row by row: a row's sum is written each time, and the last stays. later: rows
// to prefetch, as many as the tile's.
template <int kDim>
PBX_INLINE void Merge(const RowBlock& block, const int32_t* later, const int32_t* segments,
                      int64_t begin, int64_t end, int64_t last, int dim,
                      const GradientView& gradient, uint64_t reciprocal, Merged<kDim>* merged) {
  typedef float Four __attribute__((vector_size(16)));
  typedef int32_t FourInts __attribute__((vector_size(16)));
  alignas(64) float counts[kTile][4];  // show, click, embed_w
  Vectors<kDim> embedx;
  SetDim(&embedx, dim);
  embedx.Zero();
  Four sums = {};
  size_t t = SIZE_MAX;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t ahead = i + static_cast<int64_t>(kAheadSegments);
    if (ahead < last) {
      const uint64_t segment = static_cast<uint32_t>(segments[ahead] & INT32_MAX);
      const float* next = GradientOf(gradient, segment, InstanceOf(segment, reciprocal));
      for (int at = 0; at < 1 + dim; at += 16) __builtin_prefetch(next + at);
    }
    const int32_t keep = ~(segments[i] >> 31);  // 0 where a row begins, else all ones
    t += static_cast<size_t>(1 + keep);
    PrefetchRow<kDim>(block, later[t], 0, block.row_bytes - 1);
    const uint64_t segment = static_cast<uint32_t>(segments[i] & INT32_MAX);
    const uint64_t instance = InstanceOf(segment, reciprocal);
    const float* show_click = gradient.show_click + instance * gradient.show_click_stride;
    const float* from = GradientOf(gradient, segment, instance);
    sums = (Four)((FourInts)sums & keep) + Four{show_click[0], show_click[1], from[0], 0.0f};
    embedx.Keep(keep);
    embedx.Add(from + 1);
    __builtin_memcpy(counts[t], &sums, sizeof(sums));
    embedx.Store(merged->embedx[t]);
  }
  for (t = 0; t < merged->count; ++t) {
    merged->show[t] = counts[t][0];
    merged->click[t] = counts[t][1];
    merged->weight[t] = counts[t][2] * gradient.scale;
    embedx.Load(merged->embedx[t]);
    embedx.Scale(gradient.scale);
    embedx.Store(merged->embedx[t]);
    merged->squares[t] = embedx.SumOfSquares();
  }
}

// NaN and infinities times 0 are NaN.
PBX_INLINE bool Finite(float x) { return x * 0.0f == 0.0f; }

// For the rare row whose sums are not finite: false where it is left as it is.
template <int kDim>
bool Mend(const GradientView& gradient, size_t row, int dim, size_t t, Merged<kDim>* merged) {
  float* const embedx = merged->embedx[t];
  bool bad = !Finite(merged->show[t]) || !Finite(merged->click[t]) || !Finite(merged->weight[t]);
  for (int c = 0; c < dim; ++c) bad |= !Finite(embedx[c]);
  if (!bad) return true;  // only a square has overflowed
  if (gradient.report != nullptr) gradient.report(gradient.context, row);
  if (gradient.on_bad == BadGrad::kSkip) return false;
  const auto mended = [&](float x) {
    return Finite(x) ? x : (x > 0 ? gradient.bound : (x < 0 ? -gradient.bound : 0.0f));
  };
  merged->weight[t] = mended(merged->weight[t]);
  for (int c = 0; c < dim; ++c) embedx[c] = mended(embedx[c]);
  merged->squares[t] = rule::SumOfSquares(embedx, dim);
  if (!Finite(merged->show[t])) merged->show[t] = 0.0f;
  if (!Finite(merged->click[t])) merged->click[t] = 0.0f;
  return true;
}

template <int kDim>
PBX_INLINE void ReadAdaGrad(const RowBlock& block, const AccessorConfig& config,
                            const int32_t* rows, int dim, Merged<kDim>* merged) {
  constexpr int kState = RowLayout::kEmbed + 1, kEmbedx = kState + 1;
  for (size_t t = 0; t < merged->count; ++t) {
    const float* row = RowOf(block, rows[t]);
    merged->row_show[t] = row[RowLayout::kShow];
    merged->row_click[t] = row[RowLayout::kClick];
    merged->row_delta[t] = row[RowLayout::kDeltaScore];
    merged->row_weight[t] = row[RowLayout::kEmbed];
    merged->row_g2sum[t] = row[kState];
    merged->row_x_g2sum[t] = row[kEmbedx + dim];
    merged->row_rate[t] = accessor::RateOf(config, row);
    merged->row_counted[t] = accessor::CountedOf(config, row);
  }
}

// AdaGrad on both parts, as is the default: the rows' scalars are computed side by side, which is
// worth a third of the push. The same operations as accessor::PushWeights, in the same order.
template <int kDim>
PBX_INLINE void ApplyAdaGrad(const RowBlock& block, const AccessorConfig& config,
                             const int32_t* rows, int dim, const Merged<kDim>& merged,
                             uint32_t day) {
  constexpr int kState = RowLayout::kEmbed + 1, kEmbedx = kState + 1;
  alignas(64) float show[kTile], click[kTile], delta[kTile], w[kTile], g2sum[kTile], x_g2sum[kTile],
      step[kTile], score[kTile];
  for (size_t t = 0; t < kTile; ++t) {
    const float counted = merged.row_counted[t];
    show[t] = merged.row_show[t] + counted * merged.show[t];
    click[t] = merged.row_click[t] + counted * merged.click[t];
    delta[t] =
        merged.row_delta[t] + counted * accessor::Score(config, merged.show[t], merged.click[t]);
    score[t] = accessor::Score(config, show[t], click[t]);
    const float scale = accessor::ScaleOf(config, merged.show[t]);
    const float rate = merged.row_rate[t];
    const float w_step = rule::AdaGradStep(config.embed.learning_rate * rate,
                                           config.embed.initial_g2sum, merged.row_g2sum[t], scale);
    w[t] = rule::Clip(config.embed, merged.row_weight[t] - w_step * merged.weight[t]);
    g2sum[t] =
        rule::AdaGradGrown(merged.row_g2sum[t], merged.weight[t] * merged.weight[t], scale, 1);
    step[t] = rule::AdaGradStep(config.embedx.learning_rate * rate, config.embedx.initial_g2sum,
                                merged.row_x_g2sum[t], scale);
    x_g2sum[t] = rule::AdaGradGrown(merged.row_x_g2sum[t], merged.squares[t], scale, dim);
  }
  Vectors<kDim> gradient;
  SetDim(&gradient, dim);
  for (size_t t = 0; t < merged.count; ++t) {
    if (merged.skip[t]) continue;
    float* row = RowOf(block, rows[t]);
    row[RowLayout::kShow] = show[t];
    row[RowLayout::kClick] = click[t];
    row[RowLayout::kDeltaScore] = delta[t];
    SetFlag(row, kTouched);
    SetWord(row, RowLayout::kDay, day);
    row[RowLayout::kEmbed] = w[t];
    row[kState] = g2sum[t];
    if (HasEmbedx(row)) {
      gradient.Load(merged.embedx[t]);
      gradient.StepFrom(step[t], config.embedx.min_bound, config.embedx.max_bound, row + kEmbedx);
      row[kEmbedx + dim] = x_g2sum[t];
    } else if (score[t] >= config.embedx_threshold) {
      accessor::CreateEmbedx(*block.config, block.keys[rows[t]], row);
    }
  }
}

template <int kDim>
PBX_INLINE void ApplyRules(const RowBlock& block, const AccessorConfig& config, const int32_t* rows,
                           int dim, Merged<kDim>* merged, uint32_t day) {
  for (size_t t = 0; t < merged->count; ++t) {
    if (merged->skip[t]) continue;
    float* row = RowOf(block, rows[t]);
    SetFlag(row, kTouched);
    if (accessor::PushWeights(config, dim, merged->show[t], merged->click[t], &merged->weight[t],
                              merged->embedx[t], day, row)) {
      accessor::CreateEmbedx(*block.config, block.keys[rows[t]], row);
    }
  }
}

// Adds the merged push of each row to its place among those that are sent to the rows' owners.
template <int kDim>
PBX_INLINE void AddMerged(const int32_t* rows, int dim, const Merged<kDim>& merged, float* sums) {
  for (size_t t = 0; t < merged.count; ++t) {
    if (merged.skip[t]) continue;
    float* const to = sums + static_cast<size_t>(rows[t]) * static_cast<size_t>(3 + dim);
    to[0] += merged.show[t];
    to[1] += merged.click[t];
    to[2] += merged.weight[t];
    for (int c = 0; c < dim; ++c) to[3 + c] += merged.embedx[t][c];
  }
}

// Which rows of the tile are left as they are, because their sums are not finite.
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
    if (Finite(any)) continue;
    merged->skip[t] = !Mend<kDim>(gradient, static_cast<size_t>(rows[t]), dim, t, merged);
  }
}

// A tile's gradients are merged while the tile before it is applied: what was stored float by float
// can be loaded as a vector only once those stores are done, and they wait for gradients and rows.
template <int kDim>
void PushOf(const RowBlock& block, const int32_t* rows, const int32_t* starts,
            const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
            uint32_t day) {
  const AccessorConfig config = *block.config;  // a copy: writing a row cannot change it
  const int dim = kDim != 0 ? kDim : config.layout.embedx_dim;
  const bool adagrad = gradient.merged == nullptr && config.embed.kind == RuleKind::kAdaGrad &&
                       config.embedx.kind == RuleKind::kAdaGrad;
  const int64_t last = starts[end];
  const uint64_t reciprocal = ReciprocalOf(gradient.segments_per_instance);
  Merged<kDim> both[2];
  const auto apply = [&](Merged<kDim>* merged) {
    const int32_t* const here = rows + merged->tile;
    CheckFinite<kDim>(gradient, here, dim, merged);
    if (gradient.merged != nullptr) {
      AddMerged<kDim>(here, dim, *merged, gradient.merged);
    } else if (adagrad) {
      ApplyAdaGrad<kDim>(block, config, here, dim, *merged, day);
    } else {
      ApplyRules<kDim>(block, config, here, dim, merged, day);
    }
  };
  size_t odd = 0;
  for (size_t tile = begin; tile < end; tile += kTile, odd ^= 1) {
    Merged<kDim>& merged = both[odd];
    merged.tile = tile;
    merged.count = end - tile < kTile ? end - tile : kTile;
    // Rows are asked for one by one between the work on others: all of a tile at once would fill
    // the processor's queue of misses and stop it.
    const int32_t* const later =
        rows + (tile + kAheadRows + kTile < end ? tile + kAheadRows : tile);
    Merge<kDim>(block, later, segments, starts[tile], starts[tile + merged.count], last, dim,
                gradient, reciprocal, &merged);
    if (adagrad) ReadAdaGrad<kDim>(block, config, rows + tile, dim, &merged);
    if (both[odd ^ 1].count != 0) apply(&both[odd ^ 1]);
  }
  if (both[odd ^ 1].count != 0) apply(&both[odd ^ 1]);
}

#define PBX_FOR_DIM(function, ...)             \
  switch (block.config->layout.embedx_dim) {   \
    case 4: return function<4>(__VA_ARGS__);   \
    case 8: return function<8>(__VA_ARGS__);   \
    case 16: return function<16>(__VA_ARGS__); \
    case 32: return function<32>(__VA_ARGS__); \
    case 64: return function<64>(__VA_ARGS__); \
    default: return function<0>(__VA_ARGS__);  \
  }

void Pull(const RowBlock& block, const int32_t* ids, size_t n, float* out) {
  PBX_FOR_DIM(PullOf, block, ids, n, out)
}

void PullPooled(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                size_t end, bool use_cvm, const PooledOutput& output) {
  PBX_FOR_DIM(PullPooledOf, block, ids, offsets, begin, end, use_cvm, output)
}

void Push(const RowBlock& block, const int32_t* rows, const int32_t* starts,
          const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
          uint32_t day) {
  PBX_FOR_DIM(PushOf, block, rows, starts, segments, begin, end, gradient, day)
}

#undef PBX_FOR_DIM
