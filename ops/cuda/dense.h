/* The operators of ops/dense on a GPU, as a C interface like that of cuda/hbm.h: all arrays are in
 * the device's memory, functions only enqueue work in the stream, and each returns 0 or an error
 * code, for which pbx_hbm_error has a message. No sum uses an atomic operation.
 *
 * What the host checks in ops/dense, such as the rows that rank_attention reads, would need a wait.
 * Here a result that depends on a wrong value is NaN. */
#ifndef PBX_CUDA_DENSE_H_
#define PBX_CUDA_DENSE_H_

#include <stdint.h>

#include "cuda/hbm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data_norm, as dense/data_norm.h. N = instances, C = columns. */

typedef struct {
  int64_t instances, columns;
  int64_t slot_dim; /* 0: none */
  float epsilon, decay;
  const float *scale_w, *bias;          /* (C) */
  const float *size, *sum, *square_sum; /* (C) */
} pbx_hbm_norm;

/* The doubles of room that sums of `columns` columns need. */
PBX_HBM_API uint64_t pbx_hbm_norm_room(int64_t instances, int64_t columns);
/* x, y: (N, C). means, scales: (C). */
PBX_HBM_API int pbx_hbm_norm_forward(const pbx_hbm_norm* norm, const float* x, float* y,
                                     float* means, float* scales, void* stream);
/* dy, dx: (N, C). dscale_w, dbias: (C). Reads scale_w and no sums. */
PBX_HBM_API int pbx_hbm_norm_backward(const pbx_hbm_norm* norm, const float* x, const float* means,
                                      const float* scales, const float* dy, double* room, float* dx,
                                      float* dscale_w, float* dbias, void* stream);
/* size, sum, square_sum: (C), new arrays. */
PBX_HBM_API int pbx_hbm_norm_update(const pbx_hbm_norm* norm, const float* x, double* room,
                                    float* size, float* sum, float* square_sum, void* stream);

/* ---- Products of a matrix for each group: out_g = x_g y_g + bias_g. */

typedef struct {
  int64_t groups, rows, summed, columns;
  int64_t x_group, x_row, x_column; /* strides; element (i, j) is at i * row + j * column */
  int64_t y_group, y_row, y_column;
  int64_t out_group, out_row; /* columns are neighbours */
} pbx_hbm_product;

/* x: null for ones. bias: (groups, columns), or null. */
PBX_HBM_API int pbx_hbm_multiply(const pbx_hbm_product* product, const float* x, const float* y,
                                 const float* bias, float* out, void* stream);

/* ---- A stack of linear layers, as dense/mlp.h. Only libpaddlebox_gpu.so has it (gpu/mlp.cu).
 * B = instances, N_l = outputs of layer l, N_0 = columns of X, L = layers. */

typedef struct {
  int64_t inputs, outputs;
  int32_t relu;        /* 0: no activation */
  const float* weight; /* (inputs, outputs) */
  const float* bias;   /* (outputs), or null */
} pbx_gpu_layer;

typedef struct {
  const pbx_gpu_layer* layers; /* host (count) */
  int64_t count, instances;
  float dropout;       /* after each ReLU */
  const int64_t* seed; /* (1): read by the forward, with dropout */
  int32_t bfloat16;    /* 1: factors of products are rounded */
} pbx_gpu_mlp;

/* The floats that the forward saves for the backward, and those of room that one of them needs. */
PBX_HBM_API uint64_t pbx_gpu_mlp_saved(const pbx_gpu_mlp* mlp);
PBX_HBM_API uint64_t pbx_gpu_mlp_room(const pbx_gpu_mlp* mlp, int32_t backward);
/* x: (B, N_0). out: (B, N_L). */
PBX_HBM_API int pbx_gpu_mlp_forward(const pbx_gpu_mlp* mlp, const float* x, float* saved,
                                    float* room, float* out, void* stream);
/* dweights, dbiases: host (L) arrays of gradients, which have the shapes of weight and bias. A
 * dbias may be null. */
PBX_HBM_API int pbx_gpu_mlp_backward(const pbx_gpu_mlp* mlp, const float* x, const float* saved,
                                     const float* out, const float* dout, float* room, float* dx,
                                     float* const* dweights, float* const* dbiases, void* stream);

/* ---- rank_attention, as dense/rank_attention.h. N = instances, I = inputs, O = outputs, R =
 * max_rank. */

typedef struct {
  int64_t instances, inputs, outputs, max_rank;
  const int32_t* ranks; /* (N, 2 R + 1) */
} pbx_hbm_ranks;

/* x: (N, I). param: (R, R, I, O). out: (N, O). */
PBX_HBM_API int pbx_hbm_ranks_forward(const pbx_hbm_ranks* ranks, const float* x,
                                      const float* param, float* out, void* stream);
/* dout: (N, O). dx: null if it is not needed. */
PBX_HBM_API int pbx_hbm_ranks_backward(const pbx_hbm_ranks* ranks, const float* x,
                                       const float* param, const float* dout, float* dx,
                                       float* dparam, void* stream);

/* ---- Rows of sequences, as dense/jagged_rows.h. B = sequences, L = places, T = rows of all
 * sequences, C = columns. Rows after the last sequence are spare: written as zeros, not read. */

typedef struct {
  const int32_t* offsets; /* (B + 1) */
  int64_t sequences, columns;
  int64_t rows; /* at least T */
} pbx_hbm_jagged;

/* lengths: (B). offsets: (B + 1). If a length is not a whole number from 0 to `places`, the last
 * offset is -1. */
PBX_HBM_API int pbx_hbm_jagged_offsets(const float* lengths, int64_t sequences, int64_t places,
                                       int32_t* offsets, void* stream);
/* Waits for the stream. rows: T. most: the rows of the longest sequence; -1 if the offsets do not
 * ascend from 0. room: device, 2 int32. */
PBX_HBM_API int pbx_hbm_jagged_count(const int32_t* offsets, int64_t sequences, int32_t* room,
                                     int32_t* rows, int32_t* most, void* stream);
/* to: (rows) int32. */
PBX_HBM_API int pbx_hbm_jagged_places(const pbx_hbm_jagged* rows, int32_t* to, void* stream);
/* padded: (B, L, C). to, from: (rows, C). */
PBX_HBM_API int pbx_hbm_jagged_pack(const pbx_hbm_jagged* rows, int64_t places, int32_t reversed,
                                    const float* padded, float* to, void* stream);
PBX_HBM_API int pbx_hbm_jagged_unpack(const pbx_hbm_jagged* rows, int64_t places, int32_t reversed,
                                      const float* from, float* padded, void* stream);
/* x: (B, C). to: (rows, C). */
PBX_HBM_API int pbx_hbm_jagged_repeat(const pbx_hbm_jagged* rows, const float* x, float* to,
                                      void* stream);
PBX_HBM_API int pbx_hbm_jagged_sum(const pbx_hbm_jagged* rows, const float* from, float* to,
                                   void* stream);
/* All arrays: (rows, C). */
PBX_HBM_API int pbx_hbm_jagged_softmax(const pbx_hbm_jagged* rows, const float* x, float* to,
                                       void* stream);
PBX_HBM_API int pbx_hbm_jagged_softmax_backward(const pbx_hbm_jagged* rows, const float* weights,
                                                const float* dweights, float* dx, void* stream);

/* ---- Attention within sequences, as dense/jagged_attention.h. */

typedef struct {
  int32_t softmax; /* 0: pointwise */
  int64_t heads, key_width, value_width;
  float scale, divisor;
  int64_t sequences, tokens;
  const int32_t *offsets, *target_offsets; /* (U + 1) */
  const int32_t* seen;                     /* (T) */
  int64_t buckets, positions;
  const float *time_bias, *position_bias;
  const int64_t* times; /* (T), or null if buckets is 1 */
  int32_t bfloat16;     /* 1: factors of products are rounded */
} pbx_hbm_attention;

PBX_HBM_API int pbx_hbm_attention_forward(const pbx_hbm_attention* attention, const float* q,
                                          const float* k, const float* v, float* out, void* stream);
/* The floats of room that the backward needs. */
PBX_HBM_API uint64_t pbx_hbm_attention_room(const pbx_hbm_attention* attention);
/* Outputs: each in the shape of its input. */
PBX_HBM_API int pbx_hbm_attention_backward(const pbx_hbm_attention* attention, const float* q,
                                           const float* k, const float* v, const float* dout,
                                           float* room, float* dq, float* dk, float* dv,
                                           float* dtime_bias, float* dposition_bias, void* stream);

#ifdef __cplusplus
}
#endif
#endif /* PBX_CUDA_DENSE_H_ */
