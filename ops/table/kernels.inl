// Body of kernels_<path>.cc: included once per vector path, inside an anonymous namespace, after
// the target pragma. All headers it uses are included before the pragma, so that no shared inline
// function is compiled for a processor that may not be there.

constexpr int kMaxPull = 256;  // P: embedx_dim is at most 253
constexpr size_t kAhead = 32;  // rows prefetched before they are used

inline const float* RowOf(const RowBlock& block, int32_t id) {
  return reinterpret_cast<const float*>(block.rows + static_cast<size_t>(id) * block.row_bytes);
}

inline void PrefetchRow(const RowBlock& block, int32_t id) {
  if (id < 0) return;
  const char* row = block.rows + static_cast<size_t>(id) * block.row_bytes;
  __builtin_prefetch(row);
  __builtin_prefetch(row + 64);
}

void Pull(const RowBlock& block, const int32_t* ids, size_t n, float* out) {
  const RowLayout& layout = block.config->layout;
  const int dim = layout.embedx_dim;
  for (size_t i = 0; i < n; ++i, out += 3 + dim) {
    if (i + kAhead < n) PrefetchRow(block, ids[i + kAhead]);
    if (ids[i] < 0) {
      for (int c = 0; c < 3 + dim; ++c) out[c] = 0.0f;
      continue;
    }
    const float* row = RowOf(block, ids[i]);
    out[0] = row[RowLayout::kShow];
    out[1] = row[RowLayout::kClick];
    out[2] = row[RowLayout::kEmbed];
    // Before embedx exists its words are zeros in the row: no branch is needed.
    const float* embedx = row + layout.embedx_at();
    for (int c = 0; c < dim; ++c) out[3 + c] = embedx[c];
  }
}

void PullPooled(const RowBlock& block, const int32_t* ids, const int32_t* offsets, size_t begin,
                size_t end, bool use_cvm, float* out) {
  const RowLayout& layout = block.config->layout;
  const int dim = layout.embedx_dim;
  const int weights_at = use_cvm ? 2 : 0;
  const size_t width = static_cast<size_t>(weights_at + 1 + dim);
  const int32_t last = offsets[end];
  for (size_t segment = begin; segment < end; ++segment) {
    float* target = out + segment * width;
    float show = 0.0f, click = 0.0f, weight = 0.0f;
    float* embedx = target + weights_at + 1;
    for (int c = 0; c < dim; ++c) embedx[c] = 0.0f;
    for (int32_t i = offsets[segment]; i < offsets[segment + 1]; ++i) {
      if (i + static_cast<int32_t>(kAhead) < last)
        PrefetchRow(block, ids[i + static_cast<int32_t>(kAhead)]);
      if (ids[i] < 0) continue;
      const float* row = RowOf(block, ids[i]);
      show += row[RowLayout::kShow];
      click += row[RowLayout::kClick];
      weight += row[RowLayout::kEmbed];
      const float* from = row + layout.embedx_at();
      for (int c = 0; c < dim; ++c) embedx[c] += from[c];
    }
    if (use_cvm) {
      const float log_show = Log(show + 1.0f);
      target[0] = log_show;
      target[1] = Log(click + 1.0f) - log_show;
    }
    target[weights_at] = weight;
  }
}

void Push(const RowBlock& block, const int32_t* rows, const int32_t* starts,
          const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
          uint32_t day) {
  const AccessorConfig& config = *block.config;
  const int columns = 1 + config.layout.embedx_dim;
  float merged[kMaxPull];
  for (size_t u = begin; u < end; ++u) {
    if (u + kAhead < end) PrefetchRow(block, rows[u + kAhead]);
    float show = 0.0f, click = 0.0f;
    for (int c = 0; c < columns; ++c) merged[c] = 0.0f;
    for (int32_t i = starts[u]; i < starts[u + 1]; ++i) {
      const size_t segment = static_cast<size_t>(segments[i]);
      const float* counts = gradient.show_click +
                            segment / gradient.segments_per_instance * gradient.show_click_stride;
      show += counts[0];
      click += counts[1];
      const float* from = gradient.grad + segment * gradient.stride + gradient.weights_at;
      for (int c = 0; c < columns; ++c) merged[c] += from[c];
    }
    for (int c = 0; c < columns; ++c) merged[c] *= gradient.scale;
    const size_t id = static_cast<size_t>(rows[u]);
    float* row = reinterpret_cast<float*>(block.rows + id * block.row_bytes);
    accessor::Push(config, block.keys[id], show, click, merged, day, row);
    block.touched[id] = 1;
  }
}
