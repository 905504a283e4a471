// Types of Arrow columns, and which types a slot or a tag accepts.
#pragma once

#include <cstdint>
#include <string>

#include "feed/columns/arrow_abi.h"
#include "feed/text/schema.h"

namespace pbx::feed {

bool IsInteger(const ArrowSchema& type);
bool IsNumber(const ArrowSchema& type);  // or bool
bool IsString(const ArrowSchema& type);  // or binary
bool IsNull(const ArrowSchema& type);
// A list, large_list or fixed_size_list.
bool IsList(const ArrowSchema& type);
// The list size of a fixed_size_list; -1 for another type.
int64_t FixedSize(const ArrowSchema& type);

// A SlotSpec for the column of a tag, for FindColumn and for errors.
SlotSpec SpecOf(const TagColumn& tag);

// The same for the column of the weights of a slot.
SlotSpec SpecOfWeights(const SlotSpec& slot);

// For messages.
std::string TypeName(const ArrowSchema& type);

// The index of the slot's column among the children. InvalidArgument unless exactly one child has
// its name.
Result<int64_t> FindColumn(const SlotSpec& slot, const ArrowSchema& type);

}  // namespace pbx::feed
