#include "feed/instances/parsed_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/crc32c.h"

namespace pbx {
namespace {

using ull = unsigned long long;

constexpr char kFileMagic[8] = {'P', 'B', 'X', 'P', 'A', 'R', 'S', 'E'};
constexpr uint32_t kPieceMagic = 0x50584250;  // "PBXP"
constexpr size_t kAlign = 8;
constexpr size_t kMaxColumns = 64;
constexpr size_t kBufferKept = 8u << 20;  // bytes that a thread keeps for its next piece

struct FileHead {
  char magic[8];
  uint32_t version;
  uint32_t zero;
};
static_assert(sizeof(FileHead) == 16);

struct FileFoot {
  uint64_t index_offset;
  uint64_t pieces;
  uint64_t key_bytes;
  uint32_t index_crc;  // of the index and the key
  uint32_t version;
  uint32_t zero;
  uint32_t crc;  // of the fields above
  char magic[8];
};
static_assert(sizeof(FileFoot) == 48);

struct PieceHead {
  uint32_t magic;
  uint32_t columns;
  uint64_t bytes;  // of the piece
  uint64_t instances;
  uint64_t lines;
  uint64_t bad_lines;
};
static_assert(sizeof(PieceHead) == 40);

struct ColumnHead {
  char name[16];  // padded with zeros
  uint64_t count;
  uint64_t offset;  // from the start of the piece
  uint32_t crc;     // of count * stored bytes
  char kind;        // 'f' float, 'u' unsigned, 'b' bytes
  uint8_t item;     // bytes per value in memory
  uint8_t stored;   // bytes per value in the file
  uint8_t zero;
};
static_assert(sizeof(ColumnHead) == 40);

// Malformed lines, as columns.
struct BadColumns {
  std::vector<uint64_t> line;
  std::vector<uint32_t> reason_bytes;
  std::vector<uint32_t> excerpt_bytes;
  std::vector<char> text;  // reason, excerpt, reason, …
};

// ParsedChunk::large and ::rounded.
template <typename T>
struct ValueColumns {
  std::vector<uint32_t> slot;
  std::vector<uint64_t> line;
  std::vector<T> value;
};

// What is no column of a chunk, as columns.
struct Apart {
  BadColumns bad;
  ValueColumns<float> large;
  ValueColumns<double> rounded;
  std::vector<uint64_t> left_out;  // one number; empty: 0
};

// A new column of ParsedChunk must be added to EachColumn and ScatterRows.
static_assert(sizeof(ParsedChunk) ==
                  5 * sizeof(uint64_t) + 11 * sizeof(std::vector<int>) + sizeof(TagColumns),
              "ParsedChunk has columns that are not written and read here; exact is empty");

// Tags are not written. A chunk with tags is an error; otherwise it would be read back without
// them.
Status CheckUntagged(const ParsedChunk& chunk) {
  if (!chunk.tags.spec().any()) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "a chunk with ins_id, content or log keys, which parsed files cannot hold");
}

// Every column of a chunk. Columns that are not named here are not written or read. An empty column
// is not in the file, so optional columns cost nothing.
template <typename Chunk, typename Columns, typename Visit>
void EachColumn(Chunk& chunk, Columns& apart, Visit visit) {
  visit("label", chunk.labels);
  visit("dense", chunk.dense);
  visit("length", chunk.lengths);
  visit("feasign", chunk.feasigns);
  visit("weight", chunk.weights);
  visit("bad_line", apart.bad.line);
  visit("bad_reason", apart.bad.reason_bytes);
  visit("bad_excerpt", apart.bad.excerpt_bytes);
  visit("bad_text", apart.bad.text);
  visit("large_slot", apart.large.slot);
  visit("large_line", apart.large.line);
  visit("large_value", apart.large.value);
  visit("rounded_slot", apart.rounded.slot);
  visit("rounded_line", apart.rounded.line);
  visit("rounded_value", apart.rounded.value);
  visit("cut_list", chunk.cut_lists);
  visit("cut_value", chunk.cut_values);
  visit("left_out", apart.left_out);
}

template <typename T>
constexpr char KindOf() {
  return std::is_floating_point_v<T> ? 'f' : std::is_same_v<T, char> ? 'b' : 'u';
}

size_t Aligned(size_t at) { return (at + kAlign - 1) / kAlign * kAlign; }

// The least of 1, 2, 4 and 8 bytes that holds every value. Lengths nearly always fit in one byte,
// and ids that are not hashes in four bytes. Then there are half as many bytes to read, check and
// copy.
template <typename T>
uint8_t StoredWidth(const std::vector<T>& values) {
  if constexpr (KindOf<T>() != 'u') {
    return sizeof(T);
  } else {
    T all = 0;
    for (const T value : values) all |= value;
    uint8_t width = 1;
    while (width < sizeof(T) && (all >> (8 * width)) != 0) width = static_cast<uint8_t>(width * 2);
    return width;
  }
}

template <typename Stored, typename T>
void PutAs(const std::vector<T>& values, char* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    const Stored value = static_cast<Stored>(values[i]);
    std::memcpy(out + i * sizeof(Stored), &value, sizeof(Stored));
  }
}

template <typename T>
void Put(const std::vector<T>& values, uint8_t stored, char* out) {
  if constexpr (KindOf<T>() == 'u') {
    if (stored == 1) return PutAs<uint8_t>(values, out);
    if (stored == 2) return PutAs<uint16_t>(values, out);
    if (stored == 4 && sizeof(T) > 4) return PutAs<uint32_t>(values, out);
  }
  std::memcpy(out, values.data(), values.size() * sizeof(T));
}

// A block of a column is checked, searched for 0 and widened while it is in the L1 cache. Crc32c is
// fastest with multiples of 3 KiB. The output is prefetched while the checksum is computed, which
// saves a tenth of the total time.
constexpr size_t kBlockBytes = 3u << 10;

struct Taken {
  uint32_t crc = 0;
  bool zero = false;  // a value is 0
};

// The top bit is set only for 0. SSE2 cannot compare 64 bits.
template <typename Stored>
Stored ZeroBits(Stored value) {
  return static_cast<Stored>((value - 1) & ~value);
}

// REQUIRES: data is aligned for Stored.
template <typename Stored, typename T>
Taken TakeAs(const char* data, size_t count, std::vector<T>* out) {
  Taken taken;
  out->reserve(count);
  constexpr size_t kBlock = kBlockBytes / sizeof(Stored);
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = std::min(kBlock, count - at);
    const Stored* const values = reinterpret_cast<const Stored*>(data) + at;
    for (size_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(out->data() + at + i, 1);
    taken.crc = Crc32c(values, n * sizeof(Stored), taken.crc);
    if constexpr (std::is_same_v<T, uint64_t>) {
      Stored zeros = 0;
      for (size_t i = 0; i < n; ++i) zeros = static_cast<Stored>(zeros | ZeroBits(values[i]));
      taken.zero |= zeros >> (8 * sizeof(Stored) - 1) != 0;
    }
    out->insert(out->end(), values, values + n);
  }
  return taken;
}

template <typename T>
Taken Take(const char* data, size_t count, uint8_t stored, std::vector<T>* out) {
  if constexpr (KindOf<T>() == 'u') {
    if (stored == 1) return TakeAs<uint8_t>(data, count, out);
    if (stored == 2) return TakeAs<uint16_t>(data, count, out);
    if (stored == 4) return TakeAs<uint32_t>(data, count, out);
  }
  return TakeAs<T>(data, count, out);
}

Status Broken(const std::string& where, const char* what) {
  return Error(Code::kCorruption, "%s: %s; remove the file, it will be written again",
               where.c_str(), what);
}

// The columns of a piece, with checked offsets.
struct ColumnList {
  std::array<ColumnHead, kMaxColumns> columns;
  size_t size = 0;

  Status Load(const char* piece, const PieceHead& head, const std::string& where) {
    size = head.columns;
    const size_t heads = sizeof(PieceHead) + size * sizeof(ColumnHead);
    uint32_t crc;
    std::memcpy(&crc, piece + heads, sizeof(crc));
    if (crc != Crc32c(piece, heads)) return Broken(where, "the head of a piece has a wrong CRC32C");
    std::memcpy(columns.data(), piece + sizeof(PieceHead), size * sizeof(ColumnHead));
    for (size_t i = 0; i < size; ++i) {
      const ColumnHead& column = columns[i];
      const bool width =
          column.stored == 1 || column.stored == 2 || column.stored == 4 || column.stored == 8;
      if (!width || column.offset % kAlign != 0 || column.offset > head.bytes ||
          column.count > (head.bytes - column.offset) / column.stored) {
        return Broken(where, "a column exceeds its piece");
      }
    }
    return Status::Ok();
  }

  const ColumnHead* Find(const char* name) const {
    for (size_t i = 0; i < size; ++i) {
      if (std::strncmp(columns[i].name, name, sizeof(columns[i].name)) == 0) return &columns[i];
    }
    return nullptr;
  }
};

BadColumns ColumnsOfBad(const std::vector<BadLine>& lines) {
  BadColumns bad;
  for (const BadLine& line : lines) {
    bad.line.push_back(line.line);
    bad.reason_bytes.push_back(static_cast<uint32_t>(line.reason.size()));
    bad.excerpt_bytes.push_back(static_cast<uint32_t>(line.excerpt.size()));
    bad.text.insert(bad.text.end(), line.reason.begin(), line.reason.end());
    bad.text.insert(bad.text.end(), line.excerpt.begin(), line.excerpt.end());
  }
  return bad;
}

template <typename T, typename Value>
ValueColumns<T> ColumnsOf(const std::vector<Value>& values) {
  ValueColumns<T> columns;
  for (const Value& one : values) {
    columns.slot.push_back(one.slot);
    columns.line.push_back(one.line);
    columns.value.push_back(one.value);
  }
  return columns;
}

template <typename T, typename Value>
Status TakeValues(const ValueColumns<T>& columns, const std::string& where,
                  std::vector<Value>* out) {
  out->clear();
  const size_t n = columns.slot.size();
  if (columns.line.size() != n || columns.value.size() != n) {
    return Broken(where, "the large or rounded values of a piece do not fit");
  }
  for (size_t i = 0; i < n; ++i) {
    out->push_back({columns.slot[i], columns.line[i], columns.value[i]});
  }
  return Status::Ok();
}

Status TakeBad(const BadColumns& bad, const std::string& where, std::vector<BadLine>* out) {
  out->clear();
  const size_t n = bad.line.size();
  bool fits = bad.reason_bytes.size() == n && bad.excerpt_bytes.size() == n;
  size_t at = 0;
  const auto take = [&](uint32_t bytes) {
    fits = fits && bytes <= bad.text.size() - at;
    if (!fits) return std::string();
    const char* const begin = bad.text.data() + at;
    at += bytes;
    return std::string(begin, begin + bytes);
  };
  for (size_t i = 0; fits && i < n; ++i) {
    std::string reason = take(bad.reason_bytes[i]);
    out->push_back({bad.line[i], std::move(reason), take(bad.excerpt_bytes[i])});
  }
  return fits && at == bad.text.size() ? Status::Ok()
                                       : Broken(where, "the bad lines of a piece do not fit");
}

// Memory for a piece. The thread reuses it for its next piece, so it stays in the processor's
// cache.
class PieceBuffer {
 public:
  char* Get(size_t size) {
    if (size > size_) {
      // 64-bit words, because columns are aligned to 8 bytes.
      words_ = std::unique_ptr<uint64_t[]>(new uint64_t[size / 8 + 1]);
      size_ = size;
    }
    return reinterpret_cast<char*>(words_.get());
  }
  void Release() {
    if (size_ <= kBufferKept) return;
    words_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<uint64_t[]> words_;
  size_t size_ = 0;
};

Status ReadPiece(const RandomAccessFile& file, PieceSpan span, size_t number, ParsedChunk* out) {
  static thread_local PieceBuffer buffer;
  const size_t size = static_cast<size_t>(span.bytes);
  char* const piece = buffer.Get(size);
  Status status = file.Read(span.offset, size, piece);
  if (status.ok()) {
    status = DecodePiece(piece, size, file.path() + ", piece " + std::to_string(number), out);
  }
  buffer.Release();
  return status;
}

// Appends bytes to the file. *span: where they are.
Status Append(const std::string& bytes, AtomicFileWriter* file, PieceSpan* span) {
  *span = {file->written(), bytes.size()};
  return file->Append(bytes.data(), bytes.size());
}

template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

uint32_t FootCrc(const FileFoot& foot) { return Crc32c(&foot, offsetof(FileFoot, crc)); }

}  // namespace

void EncodePiece(const ParsedChunk& chunk, std::string* out) {
  const Apart apart = {ColumnsOfBad(chunk.first_bad), ColumnsOf<float>(chunk.large),
                       ColumnsOf<double>(chunk.rounded),
                       std::vector<uint64_t>(chunk.left_out != 0 ? 1 : 0, chunk.left_out)};
  std::vector<ColumnHead> heads;
  EachColumn(chunk, apart, [&](const char* name, const auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    if (values.empty()) return;
    ColumnHead head = {};
    std::strncpy(head.name, name, sizeof(head.name) - 1);
    head.count = values.size();
    head.kind = KindOf<T>();
    head.item = sizeof(T);
    head.stored = StoredWidth(values);
    heads.push_back(head);
  });
  size_t end = sizeof(PieceHead) + heads.size() * sizeof(ColumnHead) + 2 * sizeof(uint32_t);
  const size_t after_heads = end - 2 * sizeof(uint32_t);
  for (ColumnHead& head : heads) {
    head.offset = end;
    end = Aligned(end + head.count * head.stored);
  }
  out->resize(end);
  char* const piece = out->data();
  size_t i = 0;
  EachColumn(chunk, apart, [&](const char*, const auto& values) {
    if (values.empty()) return;
    ColumnHead& head = heads[i++];
    Put(values, head.stored, piece + head.offset);
    const size_t bytes = head.count * head.stored;
    std::memset(piece + head.offset + bytes, 0, Aligned(bytes) - bytes);
    head.crc = Crc32c(piece + head.offset, bytes);
  });
  const PieceHead head = {kPieceMagic, static_cast<uint32_t>(heads.size()),
                          end,         chunk.instances,
                          chunk.lines, chunk.bad_lines};
  std::memcpy(piece, &head, sizeof(head));
  if (!heads.empty()) {
    std::memcpy(piece + sizeof(head), heads.data(), heads.size() * sizeof(ColumnHead));
  }
  const uint32_t crc[2] = {Crc32c(piece, after_heads), 0};
  std::memcpy(piece + after_heads, crc, sizeof(crc));
}

Status DecodePiece(const char* piece, size_t size, const std::string& where, ParsedChunk* out) {
  PieceHead head;
  if (size < sizeof(head) + 2 * sizeof(uint32_t)) return Broken(where, "a piece is too short");
  std::memcpy(&head, piece, sizeof(head));
  if (head.magic != kPieceMagic || head.bytes != size || head.columns > kMaxColumns ||
      head.columns * sizeof(ColumnHead) > size - sizeof(head) - 2 * sizeof(uint32_t)) {
    return Broken(where, "there is no piece at an offset of the index");
  }
  ColumnList list;
  PBX_RETURN_IF_ERROR(list.Load(piece, head, where));
  out->instances = head.instances;
  out->lines = head.lines;
  out->bad_lines = head.bad_lines;
  out->nonzero = false;
  out->single = false;
  Apart apart;
  size_t taken = 0;
  bool typed = true;
  const ColumnHead* damaged = nullptr;
  EachColumn(*out, apart, [&](const char* name, auto& values) {
    using T = typename std::decay_t<decltype(values)>::value_type;
    const ColumnHead* const column = list.Find(name);
    values.clear();
    if (column == nullptr) return;
    ++taken;
    const bool fits =
        column->kind == KindOf<T>() && column->item == sizeof(T) &&
        (KindOf<T>() == 'u' ? column->stored <= sizeof(T) : column->stored == sizeof(T));
    typed = typed && fits;
    if (!fits) return;
    const Taken found = Take(piece + column->offset, column->count, column->stored, &values);
    if (found.crc != column->crc) damaged = column;
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (&values == &out->feasigns) out->nonzero = !found.zero;
    }
  });
  if (damaged != nullptr) {
    return Error(Code::kCorruption,
                 "%s: column '%.16s' has a wrong CRC32C; remove the file, it "
                 "will be written again",
                 where.c_str(), damaged->name);
  }
  if (!typed || taken != list.size) {
    return Broken(where,
                  "a piece has a column with a name or type that this version does not read");
  }
  if (out->labels.size() != out->instances)
    return Broken(where, "the labels of a piece do not fit its instances");
  if (!out->weights.empty() && out->weights.size() != out->feasigns.size())
    return Broken(where, "the weights of a piece do not fit its feasigns");
  if (out->cut_lists.size() != out->cut_values.size()) {
    return Broken(where, "the counts of cut lists of a piece do not fit");
  }
  if (apart.left_out.size() > 1) return Broken(where, "a piece has several counts of left_out");
  out->left_out = apart.left_out.empty() ? 0 : apart.left_out[0];
  PBX_RETURN_IF_ERROR(TakeValues(apart.large, where, &out->large));
  PBX_RETURN_IF_ERROR(TakeValues(apart.rounded, where, &out->rounded));
  return TakeBad(apart.bad, where, &out->first_bad);
}

Result<std::unique_ptr<ParsedFileWriter>> ParsedFileWriter::Create(const std::string& path) {
  auto file = AtomicFileWriter::Create(path);
  if (!file.ok()) return file.status();
  FileHead head = {};
  std::memcpy(head.magic, kFileMagic, sizeof(kFileMagic));
  head.version = kParsedFileVersion;
  PBX_RETURN_IF_ERROR(file.value()->Append(reinterpret_cast<const char*>(&head), sizeof(head)));
  return std::unique_ptr<ParsedFileWriter>(new ParsedFileWriter(std::move(file.value())));
}

Status ParsedFileWriter::Add(size_t number, const ParsedChunk& chunk) {
  PBX_RETURN_IF_ERROR(CheckUntagged(chunk));
  std::string piece;
  EncodePiece(chunk, &piece);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number >= pieces_.size()) pieces_.resize(number + 1);
  if (pieces_[number].bytes != 0) {
    return Error(Code::kInvalidArgument, "piece %zu is added twice", number);
  }
  return Append(piece, file_.get(), &pieces_[number]);
}

Status ParsedFileWriter::Commit(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FileFoot foot = {};
  foot.index_offset = file_->written();
  foot.pieces = pieces_.size();
  foot.key_bytes = key.size();
  std::string index;
  for (const PieceSpan& piece : pieces_) {
    if (piece.bytes == 0) {
      return Error(Code::kFailedPrecondition,
                   "a parsed file is committed before all its pieces were added");
    }
    index += Bytes(piece);
  }
  index += key;
  foot.index_crc = Crc32c(index.data(), index.size());
  foot.version = kParsedFileVersion;
  foot.crc = FootCrc(foot);
  std::memcpy(foot.magic, kFileMagic, sizeof(kFileMagic));
  index += Bytes(foot);
  PBX_RETURN_IF_ERROR(file_->Append(index.data(), index.size()));
  return file_->Commit(AtomicFileWriter::Keep::kCache);
}

uint64_t ParsedFileWriter::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return file_->written();
}

Result<std::unique_ptr<ParsedFileReader>> ParsedFileReader::Open(const std::string& path,
                                                                 const std::string& key) {
  auto file = RandomAccessFile::Open(path);
  if (!file.ok()) return file.status();
  const uint64_t size = file.value()->size();
  FileFoot foot;
  FileHead head;
  if (size < sizeof(head) + sizeof(foot))
    return Broken(path, "the file is too short for a parsed file");
  PBX_RETURN_IF_ERROR(file.value()->Read(0, sizeof(head), reinterpret_cast<char*>(&head)));
  PBX_RETURN_IF_ERROR(
      file.value()->Read(size - sizeof(foot), sizeof(foot), reinterpret_cast<char*>(&foot)));
  if (std::memcmp(head.magic, kFileMagic, sizeof(kFileMagic)) != 0 ||
      std::memcmp(foot.magic, kFileMagic, sizeof(kFileMagic)) != 0) {
    return Broken(path, "not a parsed file, or a truncated one");
  }
  if (head.version != kParsedFileVersion || foot.version != kParsedFileVersion) {
    return Error(Code::kCorruption, "%s: a parsed file of version %u, expected %u", path.c_str(),
                 head.version, kParsedFileVersion);
  }
  const uint64_t end = size - sizeof(foot);
  if (foot.crc != FootCrc(foot) || foot.index_offset < sizeof(head) || foot.index_offset > end ||
      foot.pieces > (end - foot.index_offset) / sizeof(PieceSpan) ||
      foot.key_bytes != end - foot.index_offset - foot.pieces * sizeof(PieceSpan)) {
    return Broken(path, "its footer is damaged");
  }
  std::string index(end - foot.index_offset, '\0');
  PBX_RETURN_IF_ERROR(file.value()->Read(foot.index_offset, index.size(), index.data()));
  if (foot.index_crc != Crc32c(index.data(), index.size())) {
    return Broken(path, "its index is damaged");
  }
  if (index.compare(foot.pieces * sizeof(PieceSpan), std::string::npos, key) != 0) {
    return Error(Code::kCorruption,
                 "%s: holds another file, or the file parsed with other settings: %.500s",
                 path.c_str(), index.c_str() + foot.pieces * sizeof(PieceSpan));
  }
  std::unique_ptr<ParsedFileReader> reader(new ParsedFileReader(std::move(file.value())));
  reader->pieces_.resize(foot.pieces);
  if (foot.pieces > 0) {
    std::memcpy(reader->pieces_.data(), index.data(), foot.pieces * sizeof(PieceSpan));
  }
  for (const PieceSpan& piece : reader->pieces_) {
    if (piece.offset > foot.index_offset || piece.bytes > foot.index_offset - piece.offset) {
      return Broken(path, "its index names pieces outside of the file");
    }
  }
  return reader;
}

Status ParsedFileReader::Read(size_t number, ParsedChunk* out) const {
  if (number >= pieces_.size()) {
    return Error(Code::kInvalidArgument, "%s: piece %zu, but there are %zu", file_->path().c_str(),
                 number, pieces_.size());
  }
  return ReadPiece(*file_, pieces_[number], number, out);
}

Result<std::unique_ptr<SpillFile>> SpillFile::Create(const std::string& path) {
  auto writer = AtomicFileWriter::Create(path);
  if (!writer.ok()) return writer.status();
  const std::string named = path + ".tmp";
  auto reader = RandomAccessFile::Open(named);
  if (!reader.ok()) return reader.status();
  unlink(named.c_str());
  return std::unique_ptr<SpillFile>(
      new SpillFile(std::move(writer.value()), std::move(reader.value())));
}

Result<size_t> SpillFile::Add(const ParsedChunk& chunk) {
  PBX_RETURN_IF_ERROR(CheckUntagged(chunk));
  std::string piece;
  EncodePiece(chunk, &piece);
  const std::lock_guard<std::mutex> lock(mutex_);
  PieceSpan span;
  PBX_RETURN_IF_ERROR(Append(piece, writer_.get(), &span));
  pieces_.push_back(span);
  return pieces_.size() - 1;
}

Status SpillFile::Read(size_t number, ParsedChunk* out) const {
  PieceSpan span;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (number >= pieces_.size()) {
      return Error(Code::kInvalidArgument, "%s: piece %zu, but there are %zu",
                   reader_->path().c_str(), number, pieces_.size());
    }
    span = pieces_[number];
  }
  return ReadPiece(*reader_, span, number, out);
}

uint64_t SpillFile::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return writer_->written();
}

size_t BytesOf(const ParsedChunk& chunk) {
  size_t bytes = 0;
  const Apart none;
  EachColumn(chunk, none, [&](const char*, const auto& values) {
    bytes += values.capacity() * sizeof(values[0]);
  });
  return bytes;
}

Status ScatterRows(const ParsedChunk& chunk, size_t sparse_slots, const uint32_t* part_of_row,
                   std::vector<ParsedChunk>* out) {
  const size_t n = chunk.instances, width = n == 0 ? 0 : chunk.dense.size() / n;
  if (chunk.labels.size() != n || chunk.dense.size() != n * width ||
      chunk.lengths.size() != n * sparse_slots || !chunk.tags.Fits(n) ||
      (!chunk.weights.empty() && chunk.weights.size() != chunk.feasigns.size())) {
    return Error(Code::kInvalidArgument, "chunk of %zu instances: its columns do not fit", n);
  }
  const size_t parts = out->size();
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t* const lengths = chunk.lengths.data() + i * sparse_slots;
    size_t values = 0;
    for (size_t s = 0; s < sparse_slots; ++s) values += lengths[s];
    if (part_of_row[i] >= parts || values > chunk.feasigns.size() - at) {
      return Error(Code::kInvalidArgument,
                   "row %zu goes to part %u of %zu, and needs %zu of %zu "
                   "feasigns left",
                   i, part_of_row[i], parts, values, chunk.feasigns.size() - at);
    }
    ParsedChunk& to = (*out)[part_of_row[i]];
    ++to.instances;
    to.labels.push_back(chunk.labels[i]);
    const float* const dense = chunk.dense.data() + i * width;
    to.dense.insert(to.dense.end(), dense, dense + width);
    to.lengths.insert(to.lengths.end(), lengths, lengths + sparse_slots);
    to.AddFeasigns(chunk, at, values);
    to.tags.AddRow(chunk.tags, i);
    at += values;
  }
  return Status::Ok();
}

}  // namespace pbx
