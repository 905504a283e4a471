// Types of Arrow columns, and which of them a slot or a tag can take.
#pragma once

#include <cstdint>

#include "feed/columns/arrow_abi.h"
#include "feed/text/schema.h"

namespace pbx::feed {

bool IsInteger(const ArrowSchema& type);
bool IsNumber(const ArrowSchema& type);  // or bool
bool IsString(const ArrowSchema& type);  // or binary
// A list, large_list or fixed_size_list.
bool IsList(const ArrowSchema& type);
// Items of a fixed_size_list; -1 for another type.
int64_t FixedSize(const ArrowSchema& type);

// A tag's column, as one to be found and named in errors.
SlotSpec SpecOf(const TagColumn& tag);

// The place of the slot's column among the children. InvalidArgument where it is not there once.
Result<int64_t> FindColumn(const SlotSpec& slot, const ArrowSchema& type);

}  // namespace pbx::feed
