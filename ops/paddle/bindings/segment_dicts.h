// Segment descriptors, the manifest's records of segments, as Python dicts.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "store/segment.h"
#include "store/ssd_tier.h"

namespace pbx {

namespace py = pybind11;

inline std::vector<SegmentDescriptor> SegmentsFrom(const std::vector<py::dict>& records) {
  std::vector<SegmentDescriptor> segments;
  for (const py::dict& record : records) {
    SegmentDescriptor segment;
    segment.id = record["id"].cast<uint64_t>();
    segment.sequence = record["sequence"].cast<uint64_t>();
    segment.file = record["file"].cast<std::string>();
    segment.rows = record["rows"].cast<uint64_t>();
    segment.min_key = record["min_key"].cast<uint64_t>();
    segment.max_key = record["max_key"].cast<uint64_t>();
    segment.bytes = record["bytes"].cast<uint64_t>();
    segment.footer_crc = record["footer_crc"].cast<uint32_t>();
    segments.push_back(segment);
  }
  return segments;
}

inline std::vector<py::dict> ToDicts(const std::vector<SegmentDescriptor>& segments) {
  std::vector<py::dict> records;
  for (const SegmentDescriptor& segment : segments) {
    py::dict record;
    record["id"] = segment.id;
    record["sequence"] = segment.sequence;
    record["file"] = segment.file;
    record["rows"] = segment.rows;
    record["min_key"] = segment.min_key;
    record["max_key"] = segment.max_key;
    record["bytes"] = segment.bytes;
    record["footer_crc"] = segment.footer_crc;
    records.push_back(record);
  }
  return records;
}

inline py::dict ToDict(const MergeResult& result) {
  py::dict out;
  out["segments"] = ToDicts(result.segments);
  out["rows_in"] = result.rows_in;
  out["rows_out"] = result.rows_out;
  out["rows_dropped"] = result.rows_dropped;
  out["keys_gone"] = result.keys_gone;
  out["bytes_read"] = result.bytes_read;
  out["bytes_written"] = result.bytes_written;
  return out;
}

}  // namespace pbx
