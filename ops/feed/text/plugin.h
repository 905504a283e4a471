/* The C interface of parser plugins: a shared library that turns a line into an instance.
 *
 * A plugin runs inside the training process with all its rights, so the feeder loads one only if
 * security.allow_commands is set. It is plain C, needs only this header of the project, and is
 * built with
 *
 *   cc -O2 -shared -fPIC -I<the folder of this header> my_parser.c -o my_parser.so
 *
 * It exports two functions:
 *
 *   int pbx_plugin_abi(void) { return PBX_PLUGIN_ABI; }
 *   int pbx_plugin_parse(const char* line, size_t size, struct pbx_row* row);
 *
 * pbx_plugin_parse gets a line of at least one byte, without its line break and without a NUL, not
 * even at its end. Several threads call it at once, so it must not keep state. It returns 0 for an
 * instance; any other number counts the line as malformed, with the reason in row->error. Its
 * values are checked: a label outside [0, 1] or a dense value that is not finite makes the line
 * malformed too. */
#ifndef PBX_FEED_PLUGIN_H_
#define PBX_FEED_PLUGIN_H_

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): a header for C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#define PBX_PLUGIN_ABI 1
#define PBX_PLUGIN_ERROR_BYTES 256

struct pbx_row {
  float label;  /* 0 before the call */
  float* dense; /* dense_width floats: dense slots, labels after the first and the weight, in the
                 * order of slots.yaml; 0 before the call */
  size_t dense_width;
  size_t sparse_slots; /* sparse slots are numbered from 0 in the order of slots.yaml */
  char error[PBX_PLUGIN_ERROR_BYTES]; /* why the line is malformed, with a NUL; empty before */
  /* Adds a feasign; 0 is padding and dropped. Slots must be in ascending order. Returns 0, or
   * another number if the slot is too high or below the last one; then the line is malformed. */
  int (*add)(struct pbx_row* row, size_t slot, uint64_t feasign);
  void* owner; /* used by the feeder */
};

#endif /* PBX_FEED_PLUGIN_H_ */
