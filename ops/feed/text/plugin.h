/* The C interface of parser plugins: a shared library that turns a line into an instance.
 *
 * A plugin runs inside the training process with all its rights: the feeder loads one only where
 * security.allow_commands says so. It is plain C, needs nothing of this project but this header,
 * and is built with
 *
 *   cc -O2 -shared -fPIC -I<the folder of this header> my_parser.c -o my_parser.so
 *
 * It exports two functions:
 *
 *   int pbx_plugin_abi(void) { return PBX_PLUGIN_ABI; }
 *   int pbx_plugin_parse(const char* line, size_t size, struct pbx_row* row);
 *
 * pbx_plugin_parse gets a line without its line break, not ended by a NUL, with no NUL in it and at
 * least one byte long. It is called from several threads at once, so it keeps no state. It returns
 * 0 for an instance; anything else counts the line as malformed, with the reason that it left in
 * row->error. Whatever it gives is checked: a label outside [0, 1] and a dense value that is not
 * finite make the line malformed too. */
#ifndef PBX_FEED_PLUGIN_H_
#define PBX_FEED_PLUGIN_H_

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): a header for C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#define PBX_PLUGIN_ABI 1
#define PBX_PLUGIN_ERROR_BYTES 256

struct pbx_row {
  float label;  /* 0 before the call */
  float* dense; /* dense_width floats, all dense slots in order; 0 before the call */
  size_t dense_width;
  size_t sparse_slots; /* slots count from 0, sparse ones only, in the order of slots.yaml */
  char error[PBX_PLUGIN_ERROR_BYTES]; /* why the line is malformed, ended by a NUL; empty before */
  /* Adds a feasign; 0 is padding and dropped. Slots come in ascending order. Returns 0; anything
   * else for a slot that is too high or below the one before, and the line is malformed then. */
  int (*add)(struct pbx_row* row, size_t slot, uint64_t feasign);
  void* owner; /* of the feeder */
};

#endif /* PBX_FEED_PLUGIN_H_ */
