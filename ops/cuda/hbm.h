/* The HBM tier on a GPU, as a C interface: no Paddle, no C++ types, no exceptions.
 *
 * The same sources give two libraries: with nvcc one for a GPU; with a C++ compiler one in which
 * "the device" is the host, to test everything except speed. Both give the same bits as the HBM
 * tier on the host (ops/table), because all run the same functions of ops/rule.
 *
 * Life of a table:  begin -> put_rows, carry -> find, pull, pull_pooled, plan, push -> changed,
 * get_rows (its rows go to the host) -> drop.
 *
 * A function returns 0 or an error code (pbx_hbm_code). After an error, pbx_hbm_error() gives a
 * message of one line, and nothing has changed except what the function's comment names. Functions
 * with a `stream` (cudaStream_t; null: the default stream) only enqueue work. The other functions
 * return when their work is done.
 *
 * "device" marks arrays in the device's memory, "host" arrays in the host's.
 *
 * Ids, lists and plans on the device are checked on the device, because the host cannot read them
 * without waiting. Entries out of range are left out and counted (pbx_hbm_report).
 *
 * Letters: D = embedx_dim, P = 3 + D columns [show, click, embed_w, embedx...] of a pull, W = words
 * of a row on the host (docs/formats/row.md), n = keys of a table, S = sparse slots, E =
 * expand_dim.
 */
#ifndef PBX_CUDA_HBM_H_
#define PBX_CUDA_HBM_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PBX_HBM_API __attribute__((visibility("default")))

enum pbx_hbm_code {
  PBX_HBM_OK = 0,
  PBX_HBM_INVALID = 1, /* the caller's mistake */
  PBX_HBM_MEMORY = 2,  /* the device, or pinned host memory, is full */
  PBX_HBM_DEVICE = 3,  /* CUDA refused, or a kernel failed */
};

/* A rule of ops/rule. kind: its index in the list naive, adagrad, std_adagrad, adagrad_v2, adam,
 * shared_adam, ftrl. */
typedef struct {
  int32_t kind;
  float learning_rate, initial_range, initial_g2sum;
  float beta1, beta2, epsilon, beta, l1, l2;
  float min_bound, max_bound;
} pbx_hbm_rule;

typedef struct {
  uint64_t seed;
  int32_t embedx_dim; /* 1 to 253 */
  int32_t expand_dim; /* 0 to 253 */
  int32_t show_scale; /* 0 or 1 */
  int32_t threads;    /* of the host, which copy rows; at least 1 */
  float nonclk_coeff, click_coeff, embedx_threshold;
  pbx_hbm_rule embed, embedx, expand; /* expand: with expand_dim */
  const float* slot_rates;            /* host (65536), or null: all 1 */
} pbx_hbm_config;

typedef struct {
  uint64_t rows, row_bytes, table_bytes; /* on the device; row_bytes includes padding */
} pbx_hbm_sizes;

/* Where a push finds gradients. Segment s of instance s / slots has its P' = stride floats at
 * grad + s * stride + (s / slots) * extra; embed_w is column weights_at, embedx follows. */
typedef struct {
  const float* grad; /* device */
  int64_t stride, extra, weights_at;
  const float* show_click; /* device (instances, show_click_stride): columns 0, 1 */
  int64_t show_click_stride;
  int64_t instances, slots; /* segments: instances * slots */
  float scale;              /* the batch size: turns the gradient of a mean into that of a sum */
  int32_t clip;             /* a row whose sums are not finite: 0 stays unchanged, 1 is clipped */
  float bound;              /* if clip is 1: an infinity becomes +-bound, NaN becomes 0 */
  uint32_t day;             /* days since 1970-01-01, written into the rows */
  int32_t with_expand;      /* 1: E columns of expand follow embedx, and expand is updated too */
} pbx_hbm_gradient;

/* The ids that a pooled pull sums. Segment s has the ids of list s, or of list list_of[s]. */
typedef struct {
  const int32_t* ids; /* device (nnz), in [-1, n) */
  uint64_t nnz;
  const int32_t* offsets; /* device (lists + 1) */
  const int32_t* list_of; /* device (segments), or null */
  uint64_t lists;         /* with list_of */
  uint64_t segments, slots;
  uint64_t extra; /* floats after the `slots` segments of an instance; not written */
  int32_t use_cvm;
} pbx_hbm_segments;

/* Counts over the calls of a table since it began. */
typedef struct {
  uint64_t rows_pushed, ids_pushed; /* of plans: rows and their occurrences */
  uint64_t bad_rows;                /* rows whose sums were not finite */
  uint64_t out_of_range;            /* left out: ids, lists, rows of plans, whole plans */
  uint64_t absent;                  /* feasigns without a row, see pbx_hbm_expect */
  uint64_t an_absent;               /* the highest absent feasign */
} pbx_hbm_report;

/* The time that the device spent on each kind of call. */
typedef struct {
  uint64_t pull_ns, push_ns, plan_ns; /* pull: including pooled and extended pulls */
} pbx_hbm_times;

/* The 16-bit format that values are rounded to; the numbers of row/round.h. */
enum pbx_hbm_precision { PBX_HBM_FLOAT16 = 1, PBX_HBM_BFLOAT16 = 2 };

typedef struct pbx_hbm pbx_hbm;             /* a device, with the layout of its rows */
typedef struct pbx_hbm_table pbx_hbm_table; /* the rows of one pass */

PBX_HBM_API const char* pbx_hbm_error(void);   /* of this thread's last failure */
PBX_HBM_API const char* pbx_hbm_backend(void); /* "cuda" or "host" */

PBX_HBM_API int pbx_hbm_open(const pbx_hbm_config* config, int device, pbx_hbm** out);
PBX_HBM_API void pbx_hbm_close(pbx_hbm* hbm);              /* after its tables; null is fine */
PBX_HBM_API int32_t pbx_hbm_row_words(const pbx_hbm* hbm); /* W */

/* Memory of the device, for callers that do not use CUDA. */
PBX_HBM_API int pbx_hbm_malloc(uint64_t bytes, void** out);
PBX_HBM_API void pbx_hbm_free(void* device);
PBX_HBM_API int pbx_hbm_to_device(void* device, const void* host, uint64_t bytes);
PBX_HBM_API int pbx_hbm_to_host(void* host, const void* device, uint64_t bytes);
PBX_HBM_API int pbx_hbm_copy(void* to, const void* from, uint64_t bytes, void* stream); /* device */
PBX_HBM_API int pbx_hbm_malloc_pinned(uint64_t bytes, void** out); /* host, faster to copy */
PBX_HBM_API void pbx_hbm_free_pinned(void* host);
PBX_HBM_API int pbx_hbm_synchronize(void* stream); /* returns errors of the stream too */

/* Waits for all streams of the device. Returns their errors too. */
PBX_HBM_API int pbx_hbm_wait(const pbx_hbm* hbm);
/* Copies rows of `bytes` between device arrays. Strides in bytes. */
PBX_HBM_API int pbx_hbm_copy_rows(void* to, uint64_t to_stride, const void* from,
                                  uint64_t from_stride, uint64_t bytes, uint64_t rows,
                                  void* stream);

/* A table of zeroed rows. keys: host (n), Mix of feasigns, strictly ascending. stamp: the stamp
 * of the plans of its pushes. */
PBX_HBM_API int pbx_hbm_begin(pbx_hbm* hbm, const uint64_t* keys, uint64_t n, int32_t stamp,
                              pbx_hbm_table** out);
/* From here on find counts feasigns without a row as absent, except 0 and those whose keys are in
 * refused: host (m), ascending. */
PBX_HBM_API int pbx_hbm_expect(pbx_hbm_table* table, const uint64_t* refused, uint64_t m);
/* The report at this place in the stream. pinned: host, of malloc_pinned. */
PBX_HBM_API int pbx_hbm_peek(const pbx_hbm_table* table, pbx_hbm_report* pinned, void* stream);
/* The report after pbx_hbm_wait. bad_by_slot: host (65536), or null. */
PBX_HBM_API int pbx_hbm_report_of(const pbx_hbm_table* table, pbx_hbm_report* out,
                                  uint64_t* bad_by_slot);
/* The times of the calls that ended since the last take. Does not wait. After pbx_hbm_wait, all
 * calls have ended. */
PBX_HBM_API int pbx_hbm_take_times(pbx_hbm* hbm, pbx_hbm_times* out);
PBX_HBM_API void pbx_hbm_drop(pbx_hbm_table* table);
PBX_HBM_API int pbx_hbm_sizes_of(const pbx_hbm_table* table, pbx_hbm_sizes* out);

/* Writes rows. ids: host (m), without repeats, or null: [first, first + m). rows: host; row i of
 * the table is the W words at rows + (i - first) * W. Two pinned buffers take turns: the threads
 * fill one of them while the other is copied. */
PBX_HBM_API int pbx_hbm_put_rows(pbx_hbm_table* table, const int32_t* ids, uint64_t first,
                                 uint64_t m, const float* rows);
/* Makes new rows, as accessor::Create. ids: host (m). slots: host (m). */
PBX_HBM_API int pbx_hbm_create_rows(pbx_hbm_table* table, const int32_t* ids, const uint16_t* slots,
                                    uint64_t m);
/* Copies the rows of keys that both tables have, not marked as changed. copied: their number; may
 * be null. */
PBX_HBM_API int pbx_hbm_carry(const pbx_hbm_table* from, pbx_hbm_table* to, uint64_t* copied);
/* Reads rows. ids, first, rows: as for put_rows; the other rows of the host stay as they are. */
PBX_HBM_API int pbx_hbm_get_rows(const pbx_hbm_table* table, const int32_t* ids, uint64_t first,
                                 uint64_t m, float* rows);
/* Rounds embedx of the changed rows to 16 bits as RowCodec::Round does: up or down at random, by
 * seed, key, pass and column. Rounding a row again does not change it.
 * precision: pbx_hbm_precision. */
PBX_HBM_API int pbx_hbm_round(pbx_hbm_table* table, int32_t precision, uint64_t pass);
/* Which pushes count shows and clicks from here on. counted: host (65536), 1 or 0 by the slot of
 * the row, or null: all count. Waits for the device. */
PBX_HBM_API int pbx_hbm_count(pbx_hbm_table* table, const float* counted);
/* The ids of rows that a push has changed, ascending. ids: host, room for n. */
PBX_HBM_API int pbx_hbm_changed(const pbx_hbm_table* table, int32_t* ids, uint64_t* count);

/* ids: device (m): the row of each feasign (device (m), not mixed), -1: none. */
PBX_HBM_API int pbx_hbm_find(const pbx_hbm_table* table, const uint64_t* feasigns, uint64_t m,
                             int32_t* ids, void* stream);
/* out: device (m, P). ids: device (m), in [-1, n); -1 gives zeros. */
PBX_HBM_API int pbx_hbm_pull(const pbx_hbm_table* table, const int32_t* ids, uint64_t m, float* out,
                             void* stream);
/* The same with the expand part at the end. out: device (m, P + E). */
PBX_HBM_API int pbx_hbm_pull_extended(const pbx_hbm_table* table, const int32_t* ids, uint64_t m,
                                      float* out, void* stream);
/* Sums the rows of each segment, in order, and applies CVM. out: device (segments, P), without
 * use_cvm (segments, P - 2), and `extra` floats after the segments of each instance. */
PBX_HBM_API int pbx_hbm_pull_pooled(const pbx_hbm_table* table, const pbx_hbm_segments* segments,
                                    float* out, void* stream);

/* The dedup plan of a batch, in the format of ops/row/plan.h. offsets: device (segments + 1), or
 * null: each id is a segment. nnz: offsets[segments]. plan: device, pbx_hbm_plan_room(nnz) int32.
 * Must not be called for two streams at the same time. */
PBX_HBM_API uint64_t pbx_hbm_plan_room(uint64_t nnz);
PBX_HBM_API int pbx_hbm_plan(pbx_hbm* hbm, const int32_t* ids, const int32_t* offsets,
                             uint64_t segments, uint64_t nnz, int32_t stamp, int32_t* plan,
                             void* stream);
/* Merges the gradients of each row of the plan over its segments, in the order of
 * ops/row/sum_order.h, and applies the rules. plan: device, plan_size int32. In a plan whose starts
 * do not ascend, the sums of rows with 256 occurrences or more are undefined; it is counted. */
PBX_HBM_API int pbx_hbm_push(pbx_hbm_table* table, const int32_t* plan, uint64_t plan_size,
                             const pbx_hbm_gradient* gradient, void* stream);

/* ---- Rows that ranks exchange: records of P columns, all of one size (ops/ranks/quantize.h). */

enum pbx_hbm_wire {
  PBX_HBM_WIRE_FLOAT32 = 0,
  PBX_HBM_WIRE_FLOAT16 = 1,
  PBX_HBM_WIRE_BFLOAT16 = 2,
  PBX_HBM_WIRE_INT8 = 3,
};

/* The size of a record of the rows of `hbm`; 0 for an unknown wire. */
PBX_HBM_API uint64_t pbx_hbm_record_bytes(const pbx_hbm* hbm, int32_t wire);
/* As pull, with packed rows. out: device (m records). */
PBX_HBM_API int pbx_hbm_gather(const pbx_hbm_table* table, int32_t wire, const int32_t* ids,
                               uint64_t m, void* out, void* stream);
/* records: device (m records). rows: device (m, P). */
PBX_HBM_API int pbx_hbm_unpack(const pbx_hbm* hbm, int32_t wire, const void* records, uint64_t m,
                               float* rows, void* stream);
/* As push, with each record as an instance of one slot. The records are in the order of the ranks
 * that sent them. Of gradient only clip, bound, day and with_expand are read; with_expand: records
 * are (m, P + E) float32.
 * room: device (m, P), for unpacked records; not used for float32, which needs no unpacking. */
PBX_HBM_API int pbx_hbm_push_records(pbx_hbm_table* table, const int32_t* plan, uint64_t plan_size,
                                     int32_t wire, const void* records, uint64_t m, float* room,
                                     const pbx_hbm_gradient* gradient, void* stream);

/* A table for the rows of a batch, which other ranks own. For each batch, the table is renewed and
 * filled with rows that these ranks sent. Pulls work as on any other table. A merge takes the place
 * of a push. At first the table has no rows. */
PBX_HBM_API int pbx_hbm_begin_batch(pbx_hbm* hbm, pbx_hbm_table** out);
/* Gives the table the keys of another batch (host (n), ascending), with rows and sums of zeros.
 * Waits for the device. Memory is reused and grows if needed; the counts of the report continue.
 * read_only: the table will not be merged, and find does not count feasigns without a row. */
PBX_HBM_API int pbx_hbm_renew(pbx_hbm_table* batch, const uint64_t* keys, uint64_t n, int32_t stamp,
                              int32_t read_only);
/* Writes rows. at: device (m), or null: [first, first + m). records: device (m). */
PBX_HBM_API int pbx_hbm_fill(pbx_hbm_table* batch, int32_t wire, const int32_t* at, uint64_t first,
                             const void* records, uint64_t m, void* stream);
/* As push, but without the rules: the merged P columns of each row are added to its sums. Counts in
 * the report as push does. */
PBX_HBM_API int pbx_hbm_merge(pbx_hbm_table* batch, const int32_t* plan, uint64_t plan_size,
                              const pbx_hbm_gradient* gradient, void* stream);
/* Waits for the stream and copies the sums. out: host (n, P). */
PBX_HBM_API int pbx_hbm_sums(const pbx_hbm_table* batch, float* out, void* stream);

/* The functions above for arrays of the host, through buffers on the device. They serve exchanges
 * through the host.
 * Each function returns when the work is done. A staging serves one call at a time. */
typedef struct pbx_hbm_staging pbx_hbm_staging;
PBX_HBM_API int pbx_hbm_open_staging(pbx_hbm* hbm, pbx_hbm_staging** out);
PBX_HBM_API void pbx_hbm_close_staging(pbx_hbm_staging* staging); /* null is fine */
/* ids, out: host. */
PBX_HBM_API int pbx_hbm_stage_gather(pbx_hbm_staging* staging, const pbx_hbm_table* table,
                                     int32_t wire, const int32_t* ids, uint64_t m, void* out);
/* ids: host. out: host (m), 1 if the row has embedx. */
PBX_HBM_API int pbx_hbm_stage_have_embedx(pbx_hbm_staging* staging, const pbx_hbm_table* table,
                                          const int32_t* ids, uint64_t m, uint8_t* out);
/* at, records: host. */
PBX_HBM_API int pbx_hbm_stage_fill(pbx_hbm_staging* staging, pbx_hbm_table* batch, int32_t wire,
                                   const int32_t* at, uint64_t first, const void* records,
                                   uint64_t m);
/* plan, records: host. */
PBX_HBM_API int pbx_hbm_stage_push(pbx_hbm_staging* staging, pbx_hbm_table* table,
                                   const int32_t* plan, uint64_t plan_size, int32_t wire,
                                   const void* records, uint64_t m,
                                   const pbx_hbm_gradient* gradient);

/* ---- Arrays of the host that are copied to the device together. */

/* A block of pinned memory, and one of the device. */
typedef struct pbx_hbm_parcel pbx_hbm_parcel;
PBX_HBM_API int pbx_hbm_open_parcel(int device, pbx_hbm_parcel** out);
PBX_HBM_API void pbx_hbm_close_parcel(pbx_hbm_parcel* parcel); /* null is fine */
/* The two blocks, with room for `bytes`. What they hold may be lost. */
PBX_HBM_API int pbx_hbm_fit_parcel(pbx_hbm_parcel* parcel, uint64_t bytes, void** pinned,
                                   void** on_device);
/* Copies `bytes` to the device, in a stream of its own. Returns when they are there. */
PBX_HBM_API int pbx_hbm_send_parcel(pbx_hbm_parcel* parcel, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif /* PBX_CUDA_HBM_H_ */
