// The push of a batch into the rows of a pass. kernels.inl includes it, after kernels_merge.inl.
//
// Push selects PushAs by embedx_dim, so that the compiler knows it. PushAs goes through the rows of
// a batch in tiles. Merge sums the gradients of a tile's rows over the places of the batch that
// read them. Then the update rule changes each row: AdaGrad, the default, in loops over the tile
// (ReadAdaGrad, ApplyAdaGrad), any other rule row by row (ApplyRules). On several ranks, AddMerged
// adds them to the sums that are sent to the owners of the rows instead.

template <int kDim, bool kDecay>
PBX_INLINE void ReadAdaGrad(const RowBlock& block, const AccessorConfig& config,
                            const int32_t* rows, int dim, Merged<kDim>* merged) {
  constexpr int kState = RowLayout::kEmbed + 1, kEmbedx = kState + 1;
  for (size_t t = 0; t < merged->count; ++t) {
    const float* row = RowOf(block, rows[t]);
    merged->row_show[t] = row[RowLayout::kShow];
    merged->row_click[t] = row[RowLayout::kClick];
    merged->row_delta[t] = row[RowLayout::kDeltaScore];
    merged->row_weight[t] = row[RowLayout::kEmbed];
    if constexpr (kDecay) {
      const Factors by = block.decay->Of(row);
      merged->row_weight[t] *= by.embed;
      merged->by[t] = by.embedx;
    }
    merged->row_g2sum[t] = row[kState];
    merged->row_x_g2sum[t] = row[kEmbedx + dim];
    merged->row_rate[t] = accessor::RateOf(config, row);
    merged->row_counted[t] = accessor::CountedOf(config, row);
  }
}

// AdaGrad on both parts, the default. The scalars of a tile's rows are computed in one loop, which
// vectorises, by the functions that accessor::PushWeights calls for one row. Calling PushWeights
// for each row makes a push with AVX-512 1.1 (D = 8) to 1.3 (D = 16) times as slow.
template <int kDim, bool kDecay>
PBX_INLINE void ApplyAdaGrad(const RowBlock& block, const AccessorConfig& config,
                             const int32_t* rows, int dim, const Merged<kDim>& merged,
                             uint32_t day) {
  constexpr int kState = RowLayout::kEmbed + 1, kEmbedx = kState + 1;
  alignas(64) float show[kTile], click[kTile], delta[kTile], w[kTile], g2sum[kTile], x_g2sum[kTile],
      step[kTile], score[kTile];
  for (size_t t = 0; t < kTile; ++t) {
    const accessor::Counts counts =
        accessor::AddPush(config, {merged.row_show[t], merged.row_click[t], merged.row_delta[t]},
                          merged.row_counted[t], merged.show[t], merged.click[t]);
    show[t] = counts.show;
    click[t] = counts.click;
    delta[t] = counts.delta_score;
    score[t] = accessor::Score(config, show[t], click[t]);
    const float scale = accessor::ScaleOf(config, merged.show[t] + merged.late[t]);
    const float rate = merged.row_rate[t];
    w[t] = merged.row_weight[t];
    g2sum[t] = merged.row_g2sum[t];
    rule::AdaGradUpdate(accessor::RuleFor(config.embed, rate), 1, &merged.weight[t], scale, &w[t],
                        &g2sum[t]);
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
    if constexpr (kDecay) {
      SetWord(row, RowLayout::kStep, block.decay->step);
      float* const expand = row + config.layout.expand_at();
      for (int c = 0; c < config.layout.expand_dim; ++c) expand[c] *= merged.by[t];
    }
    row[RowLayout::kEmbed] = w[t];
    row[kState] = g2sum[t];
    if (HasEmbedx(row)) {
      gradient.Load(merged.embedx[t]);
      gradient.template Step<kDecay>(config.embedx, step[t], merged.by[t], row + kEmbedx);
      row[kEmbedx + dim] = x_g2sum[t];
    } else if (score[t] >= config.embedx_threshold) {
      accessor::CreateEmbedx(*block.config, block.keys[rows[t]], row);
    }
  }
}

// The push of one row by any rule. For widths that are known only at run time, it is compiled once.
PBX_INLINE bool PushRow(std::true_type, const AccessorConfig& config, int dim, float show,
                        float click, const float* weight, const float* embedx, uint32_t day,
                        float* row, float late) {
  return accessor::PushWeights(config, dim, show, click, weight, embedx, day, row, late);
}
[[gnu::noinline]] bool PushRow(std::false_type, const AccessorConfig& config, int dim, float show,
                               float click, const float* weight, const float* embedx, uint32_t day,
                               float* row, float late) {
  return accessor::PushWeights(config, dim, show, click, weight, embedx, day, row, late);
}

template <int kDim, bool kDecay>
PBX_INLINE void ApplyRules(const RowBlock& block, const AccessorConfig& config, const int32_t* rows,
                           int dim, Merged<kDim>* merged, uint32_t day) {
  for (size_t t = 0; t < merged->count; ++t) {
    if (merged->skip[t]) continue;
    float* row = RowOf(block, rows[t]);
    if constexpr (kDecay) {
      const Factors by = block.decay->Of(row);
      accessor::ScaleWeights(config.layout, by.embed, by.embedx, row);
      SetWord(row, RowLayout::kStep, block.decay->step);
    }
    SetFlag(row, kTouched);
    if (PushRow(std::bool_constant<(kDim > 0)>(), config, dim, merged->show[t], merged->click[t],
                &merged->weight[t], merged->embedx[t], day, row, merged->late[t])) {
      accessor::CreateEmbedx(*block.config, block.keys[rows[t]], row);
    }
  }
}

// Adds the merged push of each row to the sums that are sent to the rows' owners.
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

// A tile is applied after the gradients of the next tile were merged. The rules load vectors from
// values that were stored float by float. Such a load waits until the stores are done, and the
// stores wait for gradients and rows.
template <int kDim, bool kFactors, bool kDecay>
void PushAs(const RowBlock& block, const int32_t* rows, const int32_t* starts,
            const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
            uint32_t day) {
  const AccessorConfig config = *block.config;  // a copy: writing a row cannot change it
  const int dim = kDim > 0 ? kDim : config.layout.embedx_dim;
  const bool adagrad = gradient.merged == nullptr && config.embed.kind == RuleKind::kAdaGrad &&
                       config.embedx.kind == RuleKind::kAdaGrad;
  const Occurrences<kDim, kFactors> add{gradient, segments, starts[end], dim,
                                        ReciprocalOf(gradient.segments_per_instance)};
  Merged<kDim> both[2];
  const auto apply = [&](Merged<kDim>* merged) {
    const int32_t* const here = rows + merged->tile;
    CheckFinite<kDim>(gradient, here, dim, merged);
    if (gradient.merged != nullptr) {
      AddMerged<kDim>(here, dim, *merged, gradient.merged);
    } else if (adagrad) {
      ApplyAdaGrad<kDim, kDecay>(block, config, here, dim, *merged, day);
    } else {
      ApplyRules<kDim, kDecay>(block, config, here, dim, merged, day);
    }
  };
  size_t odd = 0;
  for (size_t tile = begin; tile < end; tile += kTile, odd ^= 1) {
    Merged<kDim>& merged = both[odd];
    merged.tile = tile;
    merged.count = end - tile < kTile ? end - tile : kTile;
    // Rows are prefetched one by one, between the work on other rows. Prefetching a whole tile at
    // once would fill the processor's queue of cache misses and stall it.
    const int32_t* const later =
        rows + (tile + kAheadRows + kTile < end ? tile + kAheadRows : tile);
    Merge<kDim, kFactors>(block, later, starts + tile, add, &merged);
    if (gradient.late != nullptr) {
      for (size_t t = 0; t < merged.count; ++t) merged.late[t] = gradient.late[tile + t];
    }
    if (adagrad) ReadAdaGrad<kDim, kDecay>(block, config, rows + tile, dim, &merged);
    if (both[odd ^ 1].count != 0) apply(&both[odd ^ 1]);
  }
  if (both[odd ^ 1].count != 0) apply(&both[odd ^ 1]);
}

template <int kDim>
void PushOf(const RowBlock& block, const int32_t* rows, const int32_t* starts,
            const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
            uint32_t day) {
  const auto push = [&] {
    if (block.decay != nullptr) {
      return gradient.factors != nullptr ? PushAs<kDim, true, true> : PushAs<kDim, false, true>;
    }
    return gradient.factors != nullptr ? PushAs<kDim, true, false> : PushAs<kDim, false, false>;
  }();
  push(block, rows, starts, segments, begin, end, gradient, day);
}

void Push(const RowBlock& block, const int32_t* rows, const int32_t* starts,
          const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
          uint32_t day) {
  PBX_FOR_DIM(PushOf, block, rows, starts, segments, begin, end, gradient, day)
}
