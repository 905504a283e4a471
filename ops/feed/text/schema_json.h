// Makes a FeedSchema from JSON, as Slots.fields of Python writes the slots.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"
#include "feed/text/schema.h"

namespace pbx {

// The format of a name of data.format, or "plugin". InvalidArgument for another.
Result<Format> FormatOf(const std::string& name);

// Sets the slots and key slots of a schema, whose other fields are set, then compiles and checks
// it. slots: a list of objects with
//   name, type ("label", "dense" or "sparse"), dim, column
//   weight, weighted, weight_column, expr, zones (name -> [starts, offsets], see expr::Zone),
//   tables (name -> key -> value), constants (a list of numbers) and shares (the name of the slot
//   whose feasigns it shares): may be missing or null
//   hash, max_length, default, clip ([low, high]), log1p, bucket_of, boundaries, exact_of and
//   cross of SlotTransform: the same
// InvalidArgument names the slot.
Status SetSlots(const Json& slots, FeedSchema* schema);

}  // namespace pbx
