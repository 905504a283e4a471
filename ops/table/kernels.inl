// Body of kernels_<path>.cc: included once per vector path, inside an anonymous namespace, after
// the target pragma. PBX_LANES: floats of a register. The headers that it uses are included before
// the pragma, so that no shared inline function is compiled with instructions that the processor
// may not have. row/sum_order.h is included after it, because its function, which is always
// inlined, calls those of the kernels.
//
// Each kernel is a template over the width of embedx, so that the compiler keeps a row in
// registers. For some widths, kDim is the width. Others have a kDim below 0 and at most -kDim
// floats.

constexpr int kMaxDim = 253;
constexpr size_t kTile = 16;           // rows whose scalars a push computes together
constexpr size_t kPullTile = 64;       // segments of a pull done together: 16 is a fifth slower
constexpr size_t kAheadRows = 64;      // distance of prefetching rows; if this and the next are 24,
constexpr size_t kAheadSegments = 64;  // of gradients, pull and push take 1.08 times as long

// kDim floats as compiler vectors, which become registers of the width that the path has. Load and
// Store access arrays of kRoomOf<kDim> floats, all other functions those of a row or a tensor, with
// as many floats as the width.
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
  PBX_INLINE void Read(const float* from) { Load(from); }
  PBX_INLINE void Write(float* to) const { Store(to); }
  PBX_INLINE void Add(const float* from) {
    for (int i = 0; i < kCount; ++i) {
      Vector x;
      __builtin_memcpy(&x, from + i * kWidth, sizeof(x));
      v[i] += x;
    }
  }
  PBX_INLINE void AddScaled(const float* from, float by) {
    for (int i = 0; i < kCount; ++i) {
      Vector x;
      __builtin_memcpy(&x, from + i * kWidth, sizeof(x));
      v[i] += x * by;
    }
  }
  PBX_INLINE void Scale(float by) {
    for (int i = 0; i < kCount; ++i) v[i] *= by;
  }
  // mask 0: becomes zero; mask -1: unchanged.
  PBX_INLINE void Keep(int32_t mask) {
    typedef int32_t Ints __attribute__((vector_size(kWidth * 4)));
    for (int i = 0; i < kCount; ++i) v[i] = (Vector)((Ints)v[i] & mask);
  }
  // rule::TakeStep for weights w (if kBy: w * by) with this gradient. With a loop of rule::TakeStep
  // over memory, a push with AVX-512 is a tenth slower.
  template <bool kBy>
  PBX_INLINE void Step(const RuleConfig& config, float step, float by, float* w) const {
    for (int i = 0; i < kCount; ++i) {
      Vector x;
      __builtin_memcpy(&x, w + i * kWidth, sizeof(x));
      if constexpr (kBy) x *= by;
      rule::TakeStep(config, step, v[i], &x);
      __builtin_memcpy(w + i * kWidth, &x, sizeof(x));
    }
  }
  // rule::SumOfSquares, in registers. With a call of rule::SumOfSquares on kDim floats, a push of D
  // = 32 with AVX-512 is 3 to 4 % slower.
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

// Up to 16 floats, as a vector whose other lanes are 0. n may be below 0 or above 16. A load with a
// mask does not touch the memory of the lanes that it leaves out.
typedef float Sixteen __attribute__((vector_size(64)));
#if PBX_LANES == 16
PBX_INLINE void ReadUpTo(int n, const float* from, Sixteen* to) {
  if (n >= 16) {
    __builtin_memcpy(to, from, sizeof(*to));
    return;
  }
  // The narrowest load: cache lines are fetched also for lanes that the mask leaves out.
  const auto mask = static_cast<__mmask16>((1u << (n < 0 ? 0 : n)) - 1u);
  *to = Sixteen{};
  if (n > 8) {
    *to = (Sixteen)_mm512_maskz_loadu_ps(mask, from);
  } else if (n > 4) {
    *to = (Sixteen)_mm512_zextps256_ps512(_mm256_maskz_loadu_ps(static_cast<__mmask8>(mask), from));
  } else if (n > 0) {
    *to = (Sixteen)_mm512_zextps128_ps512(_mm_maskz_loadu_ps(static_cast<__mmask8>(mask), from));
  }
}
#elif PBX_LANES == 8
PBX_INLINE __m256i MaskOf(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PBX_INLINE void ReadUpTo(int n, const float* from, Sixteen* to) {
  const __m256 halves[2] = {
      _mm256_maskload_ps(from, MaskOf(n)),
      n > 8 ? _mm256_maskload_ps(from + 8, MaskOf(n - 8)) : _mm256_setzero_ps()};
  __builtin_memcpy(to, halves, sizeof(*to));
}
#else
PBX_INLINE void ReadUpTo(int n, const float* from, Sixteen* to) {
  *to = Sixteen{};
  for (int i = 0; i < 16 && i < n; ++i) (*to)[i] = from[i];
}
#endif
// Writes floats [first, first + kFloats) of x.
template <int kFloats>
PBX_INLINE void WriteFrom(int first, const Sixteen& x, float* to) {
#if PBX_LANES == 16
  // Not through memory: on an Intel Xeon, a load from the middle of a vector that was just stored
  // waits for the store. A push of D = 15 then takes 1.08 times as long.
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i from = _mm512_add_epi32(lanes, _mm512_set1_epi32(first));
  const __m512 floats = _mm512_permutexvar_ps(from, (__m512)x);
  __builtin_memcpy(to, &floats, kFloats * 4);
#else
  alignas(64) float floats[16];
  __builtin_memcpy(floats, &x, sizeof(x));
  __builtin_memcpy(to, floats + first, kFloats * 4);
#endif
}
// Two writes overlap. A store with a mask would take 60 cycles on an AMD EPYC.
PBX_INLINE void WriteUpTo(int n, const Sixteen& x, float* to) {
  if (n >= 16) {
    __builtin_memcpy(to, &x, sizeof(x));
  } else if (n >= 8) {
    __builtin_memcpy(to, &x, 32);
    WriteFrom<8>(n - 8, x, to + n - 8);
  } else if (n >= 4) {
    __builtin_memcpy(to, &x, 16);
    WriteFrom<4>(n - 4, x, to + n - 4);
  } else {
    for (int i = 0; i < n; ++i) to[i] = x[i];
  }
}

// The same for a width `dim`, at most kRoom, that is known only at run time. Arrays of kRoom floats
// have zeros after it.
template <int kRoom>
struct PartOf {
  Sixteen v[kRoom / 16];
  int dim;

  PBX_INLINE int count() const { return kRoom > 16 ? (dim + 15) / 16 : 1; }
  PBX_INLINE void At(int i, const float* from, Sixteen* to) const {
    ReadUpTo(dim - 16 * i, from + 16 * i, to);
  }
  PBX_INLINE void Zero() {
    for (int i = 0; i < count(); ++i) v[i] = Sixteen{};
  }
  PBX_INLINE void Load(const float* from) {
    for (int i = 0; i < count(); ++i) __builtin_memcpy(&v[i], from + 16 * i, sizeof(v[i]));
  }
  PBX_INLINE void Store(float* to) const {
    for (int i = 0; i < count(); ++i) __builtin_memcpy(to + 16 * i, &v[i], sizeof(v[i]));
  }
  PBX_INLINE void Read(const float* from) {
    for (int i = 0; i < count(); ++i) At(i, from, &v[i]);
  }
  PBX_INLINE void Write(float* to) const {
    for (int i = 0; i < count(); ++i) WriteUpTo(dim - 16 * i, v[i], to + 16 * i);
  }
  PBX_INLINE void Add(const float* from) {
    for (int i = 0; i < count(); ++i) {
      Sixteen x;
      At(i, from, &x);
      v[i] += x;
    }
  }
  PBX_INLINE void AddScaled(const float* from, float by) {
    for (int i = 0; i < count(); ++i) {
      Sixteen x;
      At(i, from, &x);
      v[i] += x * by;
    }
  }
  PBX_INLINE void Scale(float by) {
    for (int i = 0; i < count(); ++i) v[i] *= by;
  }
  PBX_INLINE void Keep(int32_t mask) {
    typedef int32_t Ints __attribute__((vector_size(64)));
    for (int i = 0; i < count(); ++i) v[i] = (Sixteen)((Ints)v[i] & mask);
  }
  template <bool kBy>
  PBX_INLINE void Step(const RuleConfig& config, float step, float by, float* w) const {
    for (int i = 0; i < count(); ++i) {
      Sixteen x;
      At(i, w, &x);
      if constexpr (kBy) x *= by;
      rule::TakeStep(config, step, v[i], &x);
      WriteUpTo(dim - 16 * i, x, w + 16 * i);
    }
  }
};
template <>
struct Vectors<-16> : PartOf<16> {};
template <>
struct Vectors<-64> : PartOf<64> {};
template <>
struct Vectors<-256> : PartOf<256> {};

// Floats of the arrays that hold a row's embedx.
template <int kDim>
constexpr int kRoomOf = kDim > 0 ? kDim : -kDim;

template <int kDim>
PBX_INLINE void SetDim(Vectors<kDim>* vectors, int dim) {
  if constexpr (kDim < 0) vectors->dim = dim;
}

PBX_INLINE float* RowOf(const RowBlock& block, int32_t id) {
  return reinterpret_cast<float*>(block.rows + static_cast<size_t>(id) * block.row_bytes);
}

// Prefetches the cache lines of bytes [first, last] of a row. An id of -1 does no harm: a prefetch
// cannot fault.
template <int kDim>
PBX_INLINE void PrefetchRow(const RowBlock& block, int32_t id, size_t first, size_t last) {
  const char* row = block.rows + static_cast<int64_t>(id) * block.row_bytes;
  if constexpr (kDim > -64) {
    for (size_t line = 0; line <= kRoomOf<kDim> * 4 / 64; ++line) Prefetch(row + first + line * 64);
  } else {
    for (size_t at = first; at < last; at += 64) Prefetch(row + at);
  }
  Prefetch(row + last);
}

bool CheckIds(const int32_t* ids, size_t n, size_t rows) {
  // Compared with id + 1, so that an id of -1 becomes 0.
  const uint32_t limit = static_cast<uint32_t>(rows);
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
  const Decay* const decay = block.decay;
  const RowLayout& layout = block.config->layout;
  const int dim = kDim > 0 ? kDim : layout.embedx_dim;
  const int embedx_at = layout.embedx_at();
  const size_t last_byte = static_cast<size_t>(embedx_at + dim) * 4 - 1;
  Vectors<kDim> weights;
  SetDim(&weights, dim);
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
    // Before embedx exists its words in the row are zeros, so no branch is needed.
    weights.Read(row + embedx_at);
    if (decay != nullptr) {
      const Factors by = decay->Of(row);
      out[2] *= by.embed;
      weights.Scale(by.embedx);
    }
    weights.Write(out + 3);
  }
}

// The row of zeros, used for padding and for feasigns that an evaluation does not find.
alignas(64) constexpr float kNoRow[RowLayout::kEmbed + 2 + 2 * kMaxDim + 2] = {};

// The input of PullPooled.
struct Pooled {
  const RowBlock& block;
  const int32_t* ids;
  const int32_t* offsets;
  int64_t last;  // end of the ids
  int dim;
  int embedx_at;
  size_t last_byte;  // the last byte of a row that is read
  size_t width;      // of a segment of the output
  Decay decay;       // if kByDecay
};

// What multiplies the weights of a row in a pull, besides 1.
constexpr int kByFactor = 1;  // the factor of its id
constexpr int kByDecay = 2;   // weight decay

// Adds the weights of a row to those of a segment. i: of its id. factors: with kByFactor, (ids).
template <int kDim, int kBy>
PBX_INLINE void AddWeights(const Pooled& pooling, const float* row, const float* factors, int64_t i,
                           float* weight, Vectors<kDim>* embedx) {
  if constexpr (kBy == 0) {
    *weight += row[RowLayout::kEmbed];
    embedx->Add(row + pooling.embedx_at);
  } else {
    Factors by{1.0f, 1.0f};
    if constexpr ((kBy & kByDecay) != 0) by = pooling.decay.Of(row);
    if constexpr ((kBy & kByFactor) != 0) by = {by.embed * factors[i], by.embedx * factors[i]};
    *weight += row[RowLayout::kEmbed] * by.embed;
    embedx->AddScaled(row + pooling.embedx_at, by.embedx);
  }
}

// Where the segments of a tile lie in the output: one after another or, with kAnywhere, anywhere. A
// pull is a tenth faster if they lie one after another.
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

// show and click of each segment of a tile, and later their CVM values: log(show + 1) and log(click
// + 1) - log(show + 1). They are interleaved as in rows and in the output. With two separate
// arrays, a pull with one id per segment took 1.05 times as long.
struct Counts {
  static constexpr size_t kPairs = 8;  // per vector
  alignas(64) float of[kPullTile][2] = {};

  PBX_INLINE void Logs(size_t count) {
    typedef float Floats __attribute__((vector_size(kPairs * 8)));
    typedef uint64_t Pairs __attribute__((vector_size(kPairs * 8)));
    for (size_t first = 0; first < count; first += kPairs) {
      float* const pairs = of[first];
      for (size_t i = 0; i < 2 * kPairs; ++i) pairs[i] = Log(pairs[i] + 1.0f);
      Floats logs;
      __builtin_memcpy(&logs, pairs, sizeof(logs));
      logs -= (Floats)((Pairs)logs << 32);  // first of a pair: -= 0; second: -= first
      __builtin_memcpy(pairs, &logs, sizeof(logs));
    }
  }
};

// Whether each segment of the tile has one id and the id has a row, as in most slots of most
// models.
PBX_INLINE bool NothingToSum(const int32_t* ids, const int32_t* offsets) {
  int others = 0;
  for (size_t t = 0; t < kPullTile; ++t) others |= (offsets[t + 1] - offsets[t]) ^ 1;
  if (others != 0) return false;
  const int32_t* const here = ids + offsets[0];
  for (size_t t = 0; t < kPullTile; ++t) others |= here[t] < 0 ? 1 : 0;
  return others == 0;
}

template <int kDim, bool kCvm, bool kAnywhere, int kBy>
PBX_INLINE void CopyTile(const Pooled& pooling, size_t tile, const Places<kAnywhere>& places,
                         Counts* counts) {
  constexpr size_t kWeights = kCvm ? 2 : 0;  // column of embed_w in the output
  const size_t width = kDim > 0 ? kWeights + 1 + kDim : pooling.width;
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
    // Adding 0, as SumTile does, turns -0 into 0. Otherwise the bits would depend on which segments
    // share a tile.
    float weight = 0.0f;
    embedx.Zero();
    AddWeights<kDim, kBy>(pooling, row, nullptr, 0, &weight, &embedx);
    target[kWeights] = weight;
    embedx.Write(target + kWeights + 1);
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

// Goes segment by segment, although the processor mispredicts where some of them end. The
// alternative is to go id by id and store the sums of the segment so far at each id. It takes 0.7
// of the time if everything is in the cache, but 1.16 of the time if rows and output are not,
// because three times as many stores wait for cache lines. With the sums in a buffer, which is
// copied to the output after the tile, it takes 1.2 of the time.
template <int kDim, bool kCvm, bool kAnywhere, int kBy>
PBX_INLINE void SumTile(const Pooled& pooling, size_t tile, size_t count, const float* factors,
                        const Places<kAnywhere>& places) {
  constexpr size_t kWeights = kCvm ? 2 : 0;
  const size_t width = kDim > 0 ? kWeights + 1 + kDim : pooling.width;
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
      AddWeights<kDim, kBy>(pooling, row, factors, i, &weight, &embedx);
    }
    counts.of[t][0] = show;
    counts.of[t][1] = click;
    target[kWeights] = weight;
    embedx.Write(target + kWeights + 1);
  }
  if (kCvm) WriteCvm(count, places, width, &counts);
}

// The factor that replaces the division segment / segments_per_instance; exact for 32 bits. 0
// stands for a divisor of 1.
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

  // Copies the pooled lists of a tile to their other segments while they are in the cache.
  template <int kDim>
  PBX_INLINE void Spread(const int32_t* first, size_t count, const Places<true>& places,
                         size_t weights_at, int dim) const {
    Vectors<kDim> embedx;
    SetDim(&embedx, dim);
    for (size_t t = 0; t < count; ++t) {
      int32_t segment = output.next[first[t]];
      if (segment < 0) continue;
      const float* const from = places.at[t];
      embedx.Read(from + weights_at + 1);
      for (; segment >= 0; segment = output.next[segment]) {
        float* const target = Of(segment);
        for (size_t c = 0; c <= weights_at; ++c) target[c] = from[c];
        embedx.Write(target + weights_at + 1);
      }
    }
  }
};

// kAnywhere: segments share lists, or the output has other floats between instances.
template <int kDim, bool kCvm, bool kAnywhere, int kBy>
void PullPooledAs(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                  size_t end, const PooledOutput& output) {
  const RowLayout& layout = block.config->layout;
  const int dim = kDim > 0 ? kDim : layout.embedx_dim;
  const size_t width = static_cast<size_t>((kCvm ? 3 : 1) + dim);
  const size_t last_byte = static_cast<size_t>(layout.embedx_at() + dim) * 4 - 1;
  const Pooled pooling{block,        ids,   offsets,
                       offsets[end], dim,   layout.embedx_at(),
                       last_byte,    width, kBy & kByDecay ? *block.decay : Decay{}};
  const size_t slots = output.slots;
  const SharedTargets shared{output, width, ReciprocalOf(slots)};
  const bool sharing = output.first != nullptr;
  size_t slot = begin % slots;
  float* next = output.out + begin * width + begin / slots * output.extra;
  // The logs of a tile are computed after the next tile was copied. They load vectors from values
  // that were stored float by float. Such a load waits until the stores are done, and the stores
  // wait for rows.
  Counts counts[2];
  Places<kAnywhere> both[2];
  size_t odd = 0;
  bool waiting = false;  // the tile in the other of `both` has no logs yet
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
    if ((kBy & kByFactor) == 0 && !sharing && count == kPullTile &&
        NothingToSum(ids, offsets + tile)) {
      CopyTile<kDim, kCvm, kAnywhere, kBy>(pooling, tile, places, &counts[odd]);
      odd ^= 1;
      if (kCvm && waiting) WriteCvm(kPullTile, both[odd], width, &counts[odd]);
      waiting = true;
      continue;
    }
    SumTile<kDim, kCvm, kAnywhere, kBy>(pooling, tile, count, output.factors, places);
    if constexpr (kAnywhere) {
      if (sharing) shared.Spread<kDim>(output.first + tile, count, places, kCvm ? 2 : 0, dim);
    }
  }
  odd ^= 1;
  if (kCvm && waiting) WriteCvm(kPullTile, both[odd], width, &counts[odd]);
}

template <int kDim, bool kCvm>
void PullPooledBy(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                  size_t end, const PooledOutput& output) {
  const bool anywhere = output.extra != 0 || output.first != nullptr;
  const auto pull = [&] {
    if (output.factors != nullptr) {
      return block.decay != nullptr ? PullPooledAs<kDim, kCvm, true, kByFactor | kByDecay>
                                    : PullPooledAs<kDim, kCvm, true, kByFactor>;
    }
    if (block.decay != nullptr) {
      return anywhere ? PullPooledAs<kDim, kCvm, true, kByDecay>
                      : PullPooledAs<kDim, kCvm, false, kByDecay>;
    }
    return anywhere ? PullPooledAs<kDim, kCvm, true, 0> : PullPooledAs<kDim, kCvm, false, 0>;
  }();
  pull(block, ids, offsets, begin, end, output);
}

template <int kDim>
void PullPooledOf(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                  size_t end, bool use_cvm, const PooledOutput& output) {
  const auto pull = use_cvm ? PullPooledBy<kDim, true> : PullPooledBy<kDim, false>;
  pull(block, ids, offsets, begin, end, output);
}

#define PBX_FOR_DIM(function, ...)                                             \
  switch (block.config->layout.embedx_dim) {                                   \
    case 4: return function<4>(__VA_ARGS__);                                   \
    case 8: return function<8>(__VA_ARGS__);                                   \
    case 16: return function<16>(__VA_ARGS__);                                 \
    case 32: return function<32>(__VA_ARGS__);                                 \
    case 64: return function<64>(__VA_ARGS__);                                 \
    default: break;                                                            \
  }                                                                            \
  if (block.config->layout.embedx_dim < 16) return function<-16>(__VA_ARGS__); \
  if (block.config->layout.embedx_dim < 64) return function<-64>(__VA_ARGS__); \
  return function<-256>(__VA_ARGS__);

void Pull(const RowBlock& block, const int32_t* ids, size_t n, float* out) {
  PBX_FOR_DIM(PullOf, block, ids, n, out)
}

void PullPooled(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                size_t end, bool use_cvm, const PooledOutput& output) {
  PBX_FOR_DIM(PullPooledOf, block, ids, offsets, begin, end, use_cvm, output)
}

#include "table/kernels_merge.inl"
#include "table/kernels_push.inl"

#undef PBX_FOR_DIM
