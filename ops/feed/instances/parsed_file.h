// Parsed files: the columns of chunks on disk, so that what was parsed once is read and not parsed.
// See docs/formats/parsed_cache.md. A piece holds one ParsedChunk and stands for itself; a parsed
// file is pieces in order, and a key that says of what.
//
// Both are caches of this machine: nothing is synced, and whatever does not pass a check is
// Corruption, to be parsed again.
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

// Raised whenever the format changes, or what a parser or transform makes of a line.
constexpr uint32_t kParsedFileVersion = 2;

// Writes a chunk as a piece into *out, which is reused.
void EncodePiece(const ParsedChunk& chunk, std::string* out);

// The chunk of a piece. Corruption, naming `where` and the column, for bytes that EncodePiece did
// not write. Whether the columns fit each other and a schema is for Instances::Append to say.
// piece is aligned to 8 bytes.
Status DecodePiece(const char* piece, size_t size, const std::string& where, ParsedChunk* out);

// Where a piece lies in its file.
struct PieceSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Thread safe: pieces are added by any thread, in any order.
class ParsedFileWriter {
 public:
  // Writes into `path`.tmp.
  static Result<std::unique_ptr<ParsedFileWriter>> Create(const std::string& path);

  // number: of the piece in the order of reading; each is added once.
  Status Add(size_t number, const ParsedChunk& chunk);

  // Makes the file visible under `path`. FailedPrecondition unless pieces 0 .. n - 1 were added.
  Status Commit(const std::string& key);

  uint64_t bytes() const;

 private:
  explicit ParsedFileWriter(std::unique_ptr<AtomicFileWriter> file) : file_(std::move(file)) {}
  mutable std::mutex mutex_;
  std::unique_ptr<AtomicFileWriter> file_;
  std::vector<PieceSpan> pieces_;  // bytes 0: not added yet
};

// Thread safe.
class ParsedFileReader {
 public:
  // NotFound without the file; Corruption for one of another version, of another key, or damaged
  // outside its pieces.
  static Result<std::unique_ptr<ParsedFileReader>> Open(const std::string& path,
                                                        const std::string& key);

  size_t pieces() const { return pieces_.size(); }

  // Corruption when the piece is damaged.
  Status Read(size_t number, ParsedChunk* out) const;

 private:
  explicit ParsedFileReader(std::unique_ptr<RandomAccessFile> file) : file_(std::move(file)) {}
  std::unique_ptr<RandomAccessFile> file_;
  std::vector<PieceSpan> pieces_;
};

// Chunks put aside on disk for the length of a pass, in a file without a name: it goes with the
// process, however that ends. Thread safe.
class SpillFile {
 public:
  static Result<std::unique_ptr<SpillFile>> Create(const std::string& path);

  // The number of the piece, from 0.
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

// Memory that the columns of a chunk take.
size_t BytesOf(const ParsedChunk& chunk);

// Row i of the chunk is added to (*out)[part_of_row[i]], in order. InvalidArgument when rows or
// columns do not fit. Counts of lines and bad lines stay behind. S: sparse slots.
Status ScatterRows(const ParsedChunk& chunk, size_t sparse_slots, const uint32_t* part_of_row,
                   std::vector<ParsedChunk>* out);

}  // namespace pbx
