#include "store/merge_cursor.h"

#include <algorithm>

namespace pbx {

MergeCursor::MergeCursor(std::vector<const SegmentReader*> segments) : heap_(Later{&cursors_}) {
  std::sort(segments.begin(), segments.end(), [](const SegmentReader* a, const SegmentReader* b) {
    return a->shape().sequence < b->shape().sequence;
  });
  cursors_.reserve(segments.size());
  for (const SegmentReader* segment : segments) cursors_.emplace_back(segment);
  for (size_t i = 0; i < cursors_.size(); ++i) heap_.push(i);
}

Status MergeCursor::Advance(size_t cursor) {
  PBX_RETURN_IF_ERROR(cursors_[cursor].Next());
  if (!cursors_[cursor].done()) heap_.push(cursor);
  return Status::Ok();
}

Status MergeCursor::Next() {
  if (any_) {
    const uint64_t last = cursors_[at_].key();
    PBX_RETURN_IF_ERROR(Advance(at_));
    while (!heap_.empty() && cursors_[heap_.top()].key() == last) {
      const size_t older = heap_.top();
      heap_.pop();
      // Not read yet: its first row is the copy that is stepped over.
      if (!cursors_[older].loaded()) PBX_RETURN_IF_ERROR(cursors_[older].Next());
      ++copies_;
      PBX_RETURN_IF_ERROR(Advance(older));
    }
  }
  any_ = !heap_.empty();
  done_ = !any_;
  if (done_) return Status::Ok();
  at_ = heap_.top();
  heap_.pop();
  // A cursor stands unread on its segment's first key until the merge gets there, so range segments
  // do not all hold a buffer at once.
  if (!cursors_[at_].loaded()) PBX_RETURN_IF_ERROR(cursors_[at_].Next());
  ++copies_;
  return Status::Ok();
}

}  // namespace pbx
