/* paddlebox_serve.h: serves an export file of paddlebox from C, without Python and Paddle.
 *
 * The library does all of a prediction but the dense part: it opens the file, follows its new
 * versions, turns raw fields into ids and numbers as training does, looks up and pools their rows,
 * and writes the input of the dense part, bit for bit what `paddlebox.serving.Predictor` feeds it.
 * The dense part is in the file as an ONNX model (`paddlebox export --onnx`), which the caller
 * runs, for example with ONNX Runtime.
 *
 *     paddlebox_options options = PADDLEBOX_OPTIONS;
 *     paddlebox_server *server;
 *     paddlebox_error error;
 *     if (paddlebox_open("r.export", &options, &server, &error)) fail(error.message);
 *     paddlebox_batch *batch = paddlebox_batch_new();        one for each thread
 *
 *     paddlebox_version *version;                            for each request:
 *     paddlebox_acquire(server, &version);
 *     paddlebox_batch_clear(batch);
 *     paddlebox_batch_next(batch);
 *     paddlebox_batch_integer(batch, "user", 17);
 *     paddlebox_batch_text(batch, "city", "Paris", 5);
 *     paddlebox_fill(version, batch, input, floats, &error); (instances, width) floats
 *     ... run the ONNX model of this version on input ...
 *     paddlebox_release(version);
 *
 * Errors. A function that can fail returns a paddlebox_code; 0 is success. It then has changed
 * nothing but what is documented, and error->message says what was expected, what was found and
 * what to do. error may be NULL. The library never ends the process and throws nothing.
 *
 * Threads. Any number of threads may use a server and its versions at once. A batch is of one
 * thread at a time.
 *
 * Versions. A version is a snapshot: its rows, its fields and its ONNX model fit each other, and
 * stay as they are until it is released, also when the file has newer ones or the server is closed.
 * A switch to a new version waits for no reader, and no reader waits for a switch. Release each
 * version that you acquire, soon: the file keeps the space of a version in use.
 *
 * Ownership. Objects of `open`, `acquire` and `batch_new` are ended by `close`, `release` and
 * `batch_free`, which accept NULL. Pointers that a version returns are valid until its release.
 * Arrays and texts that the caller passes are not used after the call.
 *
 * Processes. Open the file in each process, after a fork. The pages of the file are shared. The
 * library handles SIGBUS in its own map of the file, so that a file that another process cuts short
 * is an error, and passes it on elsewhere.
 *
 * Texts are UTF-8. Letters: B = instances, S = sparse slots, W = dense width, nnz = ids.
 */
#ifndef PADDLEBOX_SERVE_H_
#define PADDLEBOX_SERVE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A library serves only callers that were compiled with its own. */
#define PADDLEBOX_INTERFACE 1

typedef enum paddlebox_code {
  PADDLEBOX_OK = 0,
  PADDLEBOX_INVALID_ARGUMENT = 1,    /* the caller's mistake, or a field that a slot cannot read */
  PADDLEBOX_NOT_FOUND = 2,           /* there is no such file, or no slot reads a field */
  PADDLEBOX_CORRUPTION = 3,          /* the file is not as it was written */
  PADDLEBOX_IO_ERROR = 4,            /* the operating system refused */
  PADDLEBOX_OUT_OF_SPACE = 5,        /* no memory */
  PADDLEBOX_FAILED_PRECONDITION = 6, /* the file does not hold what was asked for */
  PADDLEBOX_INTERNAL = 7,            /* a fault of the library: please report it */
  PADDLEBOX_HISTORY_MISSING = 8      /* the events of a user are not kept: send all of them */
} paddlebox_code;

typedef struct paddlebox_error {
  int code;
  char message[1020]; /* ends with 0; a longer message is cut */
} paddlebox_error;

typedef struct paddlebox_server paddlebox_server;
typedef struct paddlebox_version paddlebox_version;
typedef struct paddlebox_batch paddlebox_batch;
typedef struct paddlebox_user paddlebox_user;

/* Called with each version before the server shows it, first in `open`, then by the thread that
 * follows the file, or in `refresh`. It is the place to make what belongs to the version, such as a
 * session of ONNX Runtime, and to attach it. Other than 0: the version is refused, `open` and
 * `refresh` return PADDLEBOX_FAILED_PRECONDITION, and the server keeps the one it has. It must not
 * call the server. */
typedef int (*paddlebox_on_version)(void* context, paddlebox_version* version);

typedef struct paddlebox_options {
  uint32_t interface;            /* PADDLEBOX_INTERFACE */
  uint32_t follow_ms;            /* between two looks for a new version; 0: only `refresh` looks */
  uint64_t resident_bytes;       /* the most bytes of rows of a version to copy into huge pages */
  uint64_t history_bytes;        /* the most bytes of histories of users to keep for a version */
  uint64_t pin;                  /* the version to serve; 0: the one that the file shows */
  int32_t ignore_unknown_fields; /* 1: fields that no slot reads are counted and left out */
  paddlebox_on_version on_version;
  void* context; /* of on_version */
} paddlebox_options;

#define PADDLEBOX_OPTIONS {PADDLEBOX_INTERFACE, 1000, 268435456, 268435456, 0, 0, NULL, NULL}

#if defined(__GNUC__)
#define PADDLEBOX_API __attribute__((visibility("default")))
#else
#define PADDLEBOX_API
#endif

/* PADDLEBOX_INTERFACE of the library. */
PADDLEBOX_API uint32_t paddlebox_interface(void);

/* ---- Servers */

/* Opens an export file. options: NULL for the defaults, PADDLEBOX_OPTIONS. */
PADDLEBOX_API int paddlebox_open(const char* path, const paddlebox_options* options,
                                 paddlebox_server** server, paddlebox_error* error);
/* Ends following. Versions that were acquired stay. */
PADDLEBOX_API void paddlebox_close(paddlebox_server* server);

/* Looks for a new version now. *changed (may be NULL): 1 if the server switched. After an error the
 * server keeps the version it has. */
PADDLEBOX_API int paddlebox_refresh(paddlebox_server* server, int* changed, paddlebox_error* error);
/* The error of the last look for a new version; PADDLEBOX_OK if there was none. */
PADDLEBOX_API int paddlebox_trouble(paddlebox_server* server, paddlebox_error* error);
/* Fields left out so far by ignore_unknown_fields. */
PADDLEBOX_API uint64_t paddlebox_ignored_fields(paddlebox_server* server);

/* ---- Versions */

/* The version that the server shows. It always succeeds. */
PADDLEBOX_API void paddlebox_acquire(paddlebox_server* server, paddlebox_version** version);
PADDLEBOX_API void paddlebox_release(paddlebox_version* version);

typedef struct paddlebox_about {
  uint64_t version;       /* of the run's store, as `paddlebox serve` names it in answers */
  uint64_t generation;    /* its number in the file: another one for each export */
  uint64_t day;           /* the last day of training that it has */
  uint64_t pass_number;   /* the last pass */
  uint64_t width;         /* floats that `fill` writes for an instance: the ONNX model's input */
  uint64_t sparse_slots;  /* S */
  uint64_t dense_width;   /* W */
  uint64_t tasks;         /* columns of the ONNX model's first output */
  uint64_t users;         /* 1: the model reads the histories of users; see paddlebox_user_begin */
  const char* model;      /* `name` of the config */
  const char* created_at; /* ISO 8601, UTC */
} paddlebox_about;

PADDLEBOX_API void paddlebox_describe(const paddlebox_version* version, paddlebox_about* about);
/* The name of a task; NULL if there is none with this number. */
PADDLEBOX_API const char* paddlebox_task(const paddlebox_version* version, uint64_t number);

/* The ONNX model of the dense part. Its only input is `box_input`, (B, width) float32; a model that
 * reads the histories of users has those of paddlebox_user_inputs. Its first output is
 * `probability`, (B, tasks) float32. PADDLEBOX_FAILED_PRECONDITION: the file was exported
 * without. */
PADDLEBOX_API int paddlebox_onnx(const paddlebox_version* version, const void** bytes, size_t* size,
                                 paddlebox_error* error);

/* Attaches what the caller made for a version. end (may be NULL) is called with data when no one
 * uses the version any more. Call it once for a version, in on_version. */
PADDLEBOX_API void paddlebox_attach(paddlebox_version* version, void* data,
                                    void (*end)(void* data));
PADDLEBOX_API void* paddlebox_attached(const paddlebox_version* version);

/* Reads and checks every row now, so that no request has to. */
PADDLEBOX_API int paddlebox_warm(const paddlebox_version* version, paddlebox_error* error);

/* ---- Batches of raw fields */

PADDLEBOX_API paddlebox_batch* paddlebox_batch_new(void); /* NULL: no memory */
PADDLEBOX_API void paddlebox_batch_free(paddlebox_batch* batch);
PADDLEBOX_API void paddlebox_batch_clear(paddlebox_batch* batch);
/* Begins an instance. */
PADDLEBOX_API void paddlebox_batch_next(paddlebox_batch* batch);

/* Sets a field of the instance: the name of a column or slot, and its value as in the training
 * data. A field that is not set is empty. Names and values are checked by `fill`, against the slots
 * of its version. A value that does not fit into memory makes `fill` return PADDLEBOX_OUT_OF_SPACE.
 *
 * A text of CSV data is split at its list separator; the texts of a list are not. */
PADDLEBOX_API void paddlebox_batch_text(paddlebox_batch* batch, const char* field, const char* text,
                                        size_t bytes);
PADDLEBOX_API void paddlebox_batch_integer(paddlebox_batch* batch, const char* field,
                                           int64_t value);
PADDLEBOX_API void paddlebox_batch_id(paddlebox_batch* batch, const char* field, uint64_t value);
PADDLEBOX_API void paddlebox_batch_real(paddlebox_batch* batch, const char* field, double value);
PADDLEBOX_API void paddlebox_batch_texts(paddlebox_batch* batch, const char* field,
                                         const char* const* texts, const size_t* bytes, size_t n);
PADDLEBOX_API void paddlebox_batch_integers(paddlebox_batch* batch, const char* field,
                                            const int64_t* values, size_t n);
PADDLEBOX_API void paddlebox_batch_ids(paddlebox_batch* batch, const char* field,
                                       const uint64_t* values, size_t n);
PADDLEBOX_API void paddlebox_batch_reals(paddlebox_batch* batch, const char* field,
                                         const double* values, size_t n);

/* ---- Lookups */

/* Writes the input of the dense part for the instances of a batch: input, (B, width), of which the
 * caller says how many floats it has. PADDLEBOX_INVALID_ARGUMENT and PADDLEBOX_NOT_FOUND name the
 * instance, counted from 0, and the field; input is then undefined. */
PADDLEBOX_API int paddlebox_fill(const paddlebox_version* version, paddlebox_batch* batch,
                                 float* input, size_t floats, paddlebox_error* error);

/* The same from ids and dense features, as the feeder computes them. ids (nnz), offsets
 * (B * S + 1), ascending from 0 to nnz; weights (nnz) if a slot is weighted, with 1 for the ids of
 * others, otherwise NULL; dense (B, W), or NULL if W is 0. */
PADDLEBOX_API int paddlebox_fill_ids(const paddlebox_version* version, const uint64_t* ids,
                                     const int32_t* offsets, const float* weights,
                                     const float* dense, size_t instances, float* input,
                                     size_t floats, paddlebox_error* error);

/* ---- Users: models that read histories
 *
 * A request has events of a user and candidates: instances that might be shown to the user now, of
 * which each is predicted after all events. The library keeps the events under the name of the
 * user, with the keys and values that the dense part made of them, so that the next request sends
 * only the new ones:
 *
 *     paddlebox_user *request;
 *     if (paddlebox_user_begin(version, "7", 1, after, events, candidates, &request, &error)) ...
 *     paddlebox_user_inputs(request, &inputs, &n);
 *     ... run the ONNX model of this version; its outputs are `probability`, (G, 1), and `known`
 *     paddlebox_user_keep(request, known, floats, &error);
 *     paddlebox_user_end(request);
 *
 * Each version has histories of its own, and a new one starts without. When they take more than
 * options.history_bytes, those of the users who asked longest ago are dropped. If two requests for
 * a user overlap, the history of the one that is kept last stays. */

typedef enum paddlebox_type { /* as ONNX numbers them */
                              PADDLEBOX_FLOAT32 = 1,
                              PADDLEBOX_INT32 = 6,
                              PADDLEBOX_INT64 = 7
} paddlebox_type;

typedef struct paddlebox_tensor {
  const char* name; /* of the input of the ONNX model */
  paddlebox_type type;
  uint32_t rank; /* 1 or 2 */
  int64_t shape[2];
  const void* data; /* never NULL */
  size_t bytes;
} paddlebox_tensor;

/* Begins a request. user: the name under which the history is kept, of at most 256 characters; of 0
 * bytes: it is not kept. after: the number of events that earlier requests for the user have sent
 * and that the new ones follow; later ones are forgotten. 0: `events` are the whole history.
 *
 * events: in the order of time, each with the fields of an instance, the label, and the time, in
 * the field that `tags.time` of slots.yaml names. candidates: with a time, without a label. Either
 * may be NULL.
 *
 * PADDLEBOX_HISTORY_MISSING: the first `after` events are not kept: send the whole history, and
 * after 0. Errors name "history 3" or "candidate 3", counted from 0, and the field. End the request
 * before the version is released. */
PADDLEBOX_API int paddlebox_user_begin(const paddlebox_version* version, const char* user,
                                       size_t user_bytes, uint64_t after, paddlebox_batch* events,
                                       paddlebox_batch* candidates, paddlebox_user** request,
                                       paddlebox_error* error);
/* The inputs of the ONNX model, valid until the end of the request. */
PADDLEBOX_API void paddlebox_user_inputs(const paddlebox_user* request,
                                         const paddlebox_tensor** inputs, size_t* n);
/* Keeps the history, in place of the one that was kept for the user before. known: the output of
 * this name, of which the caller says how many floats it has. Call it at most once. */
PADDLEBOX_API int paddlebox_user_keep(paddlebox_user* request, const float* known, size_t floats,
                                      paddlebox_error* error);
PADDLEBOX_API void paddlebox_user_end(paddlebox_user* request); /* accepts NULL */

#ifdef __cplusplus
}
#endif

#endif /* PADDLEBOX_SERVE_H_ */
