// Sparse slots: integers, which are copied whole or checked one by one, and what is hashed, strings
// and the digits of integers.
#include <charconv>
#include <cstring>

#include "base/vector_clones.h"
#include "feed/columns/column_block.h"
#include "feed/text/line_parser.h"
#include "feed/text/scan.h"
#include "feed/text/transform.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

template <typename T>
bool HasZero(const T* values, size_t n) {
  uint64_t zero = 0;  // its top bit is set if a value is 0; SSE2 cannot compare 64 bits
  for (size_t i = 0; i < n; ++i) {
    const uint64_t feasign = static_cast<uint64_t>(static_cast<int64_t>(values[i]));
    zero |= (feasign - 1) & ~feasign;
  }
  return zero >> 63 != 0;
}

// to may be from.
PBX_VECTOR_CLONES void KeyAll(const uint64_t* from, size_t n, uint32_t slot, uint64_t* to) {
  for (size_t i = 0; i < n; ++i) to[i] = FeasignInSlot(from[i], slot);
}

}  // namespace

Status Block::Sparse(const Column& column, size_t slot) {
  size_t most = 0;
  if (column.contiguous()) {
    most += static_cast<size_t>(items_[rows_ - 1].end - items_[0].begin);
  } else {
    for (size_t row = 0; row < rows_; ++row) {
      most += static_cast<size_t>(items_[row].end - items_[row].begin);
    }
  }
  Room(slot, most);
  switch (column.leaf_kind()) {
    case 'u':
    case 'z': return Strings<int32_t>(column, slot);
    case 'U':
    case 'Z': return Strings<int64_t>(column, slot);
    case 'n':
      for (size_t row = 0; row < rows_; ++row) out_->lengths[(first_ + row) * slots_ + slot] = 0;
      return Status::Ok();
    default:
      WithInteger(column.leaf_kind(), [&](auto* type) {
        if (column.slot().transform.hash) {
          Digits(column, slot, type);
        } else {
          per_slot_ ? Integers<true>(column, slot, type) : Integers<false>(column, slot, type);
        }
      });
      return Status::Ok();
  }
}

uint8_t Block::OneFeasignEach(const Column& column, size_t slot, int64_t first) {
  WithInteger(column.leaf_kind(), [&](auto* type) {
    const auto* const from = static_cast<decltype(type)>(column.leaf().buffers[1]) + first;
    if constexpr (sizeof(*type) == sizeof(uint64_t)) {
      next_[slot] = reinterpret_cast<const uint64_t*>(from);
    } else {
      Room(slot, rows_);
      for (size_t i = 0; i < rows_; ++i) {
        values_[slot][i] = static_cast<uint64_t>(static_cast<int64_t>(from[i]));
      }
    }
  });
  const uint64_t* const from = next_[slot];
  if (!per_slot_) {
    const bool behind =
        from == values_[slot].data() ||
        column.ValuesBehind(first + static_cast<int64_t>(rows_)) >= static_cast<int64_t>(kShort);
    return behind ? 2 : 1;
  }
  Room(slot, rows_);
  KeyAll(from, rows_, key_slots_[slot], values_[slot].data());
  return 2;
}

void Block::LeaveOutZeros(size_t slot) {
  const uint64_t* const from = next_[slot];
  if (single_[slot] == 2 && !HasZero(from, rows_)) return;
  Room(slot, rows_);  // where the feasigns may be already
  uint64_t* to = values_[slot].data();
  uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
  for (size_t row = 0; row < rows_; ++row, length += slots_) {
    *to = from[row];
    *length = *to != 0;
    to += *length;
  }
}

template <bool per_slot, typename T>
void Block::Integers(const Column& column, size_t slot, const T* type) {
  // In most blocks no value must be left out.
  const int64_t first = items_[0].begin, n = items_[rows_ - 1].end - first;
  if (!column.contiguous() || !Whole(column, slot, first, n, type)) {
    return Sift<per_slot>(column, slot, type);
  }
  uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
  for (size_t row = 0; row < rows_; ++row, length += slots_) {
    *length = static_cast<uint32_t>(items_[row].end - items_[row].begin);
  }
}

template <typename T>
bool Block::Whole(const Column& column, size_t slot, int64_t first, int64_t n, const T*) {
  if (HasNulls(column.leaf())) return false;
  const T* const from = Values<T>(column.leaf()) + first;
  if (HasZero(from, static_cast<size_t>(n))) return false;
  if constexpr (sizeof(T) == 8) {
    // The values are used in place if kShort more values can be read after the last one.
    if (!per_slot_ && column.ValuesBehind(first + n) >= static_cast<int64_t>(kShort)) {
      next_[slot] = reinterpret_cast<const uint64_t*>(from);
      return true;
    }
  }
  Room(slot, static_cast<size_t>(n));
  uint64_t* const to = values_[slot].data();
  const uint32_t key_slot = key_slots_[slot];
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t feasign = static_cast<uint64_t>(static_cast<int64_t>(from[i]));
    to[i] = per_slot_ ? FeasignInSlot(feasign, key_slot) : feasign;
  }
  return true;
}

void Block::Room(size_t slot, size_t n) {
  if (values_[slot].size() < n + kShort) values_[slot].resize((n + kShort) * 3 / 2);
  next_[slot] = values_[slot].data();
}

template <bool per_slot, typename T>
void Block::Sift(const Column& column, size_t slot, const T*) {
  const T* const values = Values<T>(column.leaf());
  const uint32_t key_slot = key_slots_[slot];
  uint64_t* next = values_[slot].data();
  uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
  for (size_t row = 0; row < rows_; ++row, length += slots_) {
    uint64_t* const first = next;
    for (int64_t at = items_[row].begin; at < items_[row].end; ++at) {
      if (!Valid(column.leaf(), at)) continue;
      const uint64_t feasign = static_cast<uint64_t>(static_cast<int64_t>(values[at]));
      *next = per_slot ? FeasignInSlot(feasign, key_slot) : feasign;
      next += feasign != 0;
    }
    *length = static_cast<uint32_t>(next - first);
  }
}

template <typename T>
void Block::Digits(const Column& column, size_t slot, const T*) {
  const T* const values = Values<T>(column.leaf());
  const uint32_t key_slot = key_slots_[slot];
  uint64_t* next = values_[slot].data();
  uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
  char text[24];
  for (size_t row = 0; row < rows_; ++row, length += slots_) {
    uint64_t* const first = next;
    for (int64_t at = items_[row].begin; at < items_[row].end; ++at) {
      if (!Valid(column.leaf(), at)) continue;
      const char* const end = std::to_chars(text, text + sizeof(text), values[at]).ptr;
      const uint64_t feasign = FeasignOfString(text, static_cast<size_t>(end - text));
      *next++ = per_slot_ ? FeasignInSlot(feasign, key_slot) : feasign;
    }
    *length = static_cast<uint32_t>(next - first);
  }
}

template <typename Offset>
Status Block::Strings(const Column& column, size_t slot) {
  const ArrowArray& leaf = column.leaf();
  const uint32_t key_slot = key_slots_[slot];
  uint64_t* next = values_[slot].data();
  uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
  for (size_t row = 0; row < rows_; ++row, length += slots_) {
    uint64_t* const first = next;
    for (int64_t at = items_[row].begin; at < items_[row].end; ++at) {
      if (!Valid(leaf, at)) continue;
      std::string_view text;
      PBX_RETURN_IF_ERROR(TextOf<Offset>(column, at, &text));
      // Also of a binary column: a request to a server could not have the value.
      if (!IsUtf8(text.data(), text.data() + text.size())) {
        Bad(row, "slot '%.200s': '%s' is not UTF-8", column.slot().name.c_str(),
            Printable(text.data(), text.data() + text.size(), 40).c_str());
        continue;
      }
      uint64_t feasign = FeasignOfString(text.data(), text.size());
      if (per_slot_) feasign = FeasignInSlot(feasign, key_slot);
      *next = feasign;
      next += feasign != 0;
    }
    *length = static_cast<uint32_t>(next - first);
  }
  return Status::Ok();
}

}  // namespace pbx::feed
