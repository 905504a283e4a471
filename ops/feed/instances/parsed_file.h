// Parsed files: the columns of chunks on disk, so that a file is parsed only once. See
// docs/formats/parsed_cache.md. A piece holds one ParsedChunk and can be read alone. A parsed file
// has pieces in order, and a key that identifies the source.
//
// Pieces and parsed files are caches of one machine: nothing is synced. If a check fails, the
// reader returns Corruption, and the caller parses the source again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "feed/text/parser.h"

namespace pbx {

// Must be raised when the format changes, or when a parser or transform gives another result for a
// line.
constexpr uint32_t kParsedFileVersion = 3;

// Encodes a chunk as a piece into *out, whose memory is reused.
void EncodePiece(const ParsedChunk& chunk, std::string* out);

// Decodes a piece. Corruption, naming `where` and the column, if EncodePiece did not write these
// bytes. Instances::Append checks that the columns fit each other and the schema. piece: aligned to
// 8 bytes.
Status DecodePiece(const char* piece, size_t size, const std::string& where, ParsedChunk* out);

// The place of a piece in its file.
struct PieceSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Thread safe: any thread may add pieces, in any order.
class ParsedFileWriter {
 public:
  // Writes into `path`.tmp.
  static Result<std::unique_ptr<ParsedFileWriter>> Create(const std::string& path);

  // number: the place of the piece in the order of reading. Each number must be added once.
  Status Add(size_t number, const ParsedChunk& chunk);

  // Makes the file visible under `path`. FailedPrecondition unless pieces 0 .. n - 1 were added.
  Status Commit(const std::string& key);

  uint64_t bytes() const;

 private:
  explicit ParsedFileWriter(std::unique_ptr<AtomicFileWriter> file) : file_(std::move(file)) {}
  mutable std::mutex mutex_;
  std::unique_ptr<AtomicFileWriter> file_;
  std::vector<PieceSpan> pieces_;  // an entry with 0 bytes: the piece is not added yet
};

// Thread safe.
class ParsedFileReader {
 public:
  // NotFound if there is no file. Corruption if it has another version or key, or is damaged
  // outside of its pieces.
  static Result<std::unique_ptr<ParsedFileReader>> Open(const std::string& path,
                                                        const std::string& key);

  size_t pieces() const { return pieces_.size(); }

  // Corruption if the piece is damaged.
  Status Read(size_t number, ParsedChunk* out) const;

 private:
  explicit ParsedFileReader(std::unique_ptr<RandomAccessFile> file) : file_(std::move(file)) {}
  std::unique_ptr<RandomAccessFile> file_;
  std::vector<PieceSpan> pieces_;
};

// Chunks that are on disk for the duration of a pass. The file has no name, so it disappears when
// the process ends in any way. Thread safe.
class SpillFile {
 public:
  static Result<std::unique_ptr<SpillFile>> Create(const std::string& path);

  // Returns the number of the piece, from 0.
  Result<size_t> Add(const ParsedChunk& chunk);
  Status Read(size_t number, ParsedChunk* out) const;
  uint64_t bytes() const;

 private:
  SpillFile(std::unique_ptr<AtomicFileWriter> writer, std::unique_ptr<RandomAccessFile> reader)
      : writer_(std::move(writer)), reader_(std::move(reader)) {}
  mutable std::mutex mutex_;
  std::unique_ptr<AtomicFileWriter> writer_;
  std::unique_ptr<RandomAccessFile> reader_;
  std::vector<PieceSpan> pieces_;
};

// The memory of the columns of a chunk.
size_t BytesOf(const ParsedChunk& chunk);

// Appends row i of the chunk, with its tags, to (*out)[part_of_row[i]], in order. InvalidArgument
// if rows or columns do not fit. Counts of lines and bad lines are not copied. S: sparse slots.
Status ScatterRows(const ParsedChunk& chunk, size_t sparse_slots, const uint32_t* part_of_row,
                   std::vector<ParsedChunk>* out);

}  // namespace pbx
