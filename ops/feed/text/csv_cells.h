// The cells of a CSV line.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "feed/text/line_parser.h"
#include "feed/text/schema.h"

namespace pbx::feed {

struct Cell {
  const char* begin;
  const char* end;
};

// Cuts the cell that begins at p. Returns where it ends: at a delimiter, or at the end of the line.
// Null, with the reason in *error, if its quote is not closed, or text follows its closing quote.
// A quoted cell with "" in it is copied to the end of *unquoted, and the cell points there: reserve
// room for the whole line, so that it never moves. number: of the cell, from 1, for the reason.
inline const char* CutCell(const char* p, const char* end, char delimiter, size_t number,
                           std::string* unquoted, Cell* cell, LineError* error) {
  if (p == end || *p != '"') {
    const void* found = std::memchr(p, delimiter, static_cast<size_t>(end - p));
    const char* const stop = found == nullptr ? end : static_cast<const char*>(found);
    *cell = {p, stop};
    return stop;
  }
  const size_t first = unquoted->size();
  const char* const begin = ++p;
  bool doubled = false;
  for (;; ++p) {
    if (p == end) {
      error->Set("the quote of cell %zu is not closed", number);
      return nullptr;
    }
    if (*p == '"') {
      if (p + 1 == end || p[1] != '"') break;
      doubled = true;
      ++p;
    }
    unquoted->push_back(*p);
  }
  const char* const text = unquoted->data();
  *cell = doubled ? Cell{text + first, text + unquoted->size()} : Cell{begin, p};
  ++p;
  if (p < end && *p != delimiter) {
    error->Set("cell %zu continues after its closing quote", number);
    return nullptr;
  }
  return p;
}

// Cuts a line into cells, which it adds to *cells. Reserve room for the line in *unquoted.
inline bool CutCells(const char* p, const char* end, char delimiter, std::string* unquoted,
                     std::vector<Cell>* cells, LineError* error) {
  for (;;) {
    Cell cell;
    p = CutCell(p, end, delimiter, cells->size() + 1, unquoted, &cell, error);
    if (p == nullptr) return false;
    cells->push_back(cell);
    if (p == end) return true;
    ++p;  // a delimiter is always followed by a cell, which may be empty
  }
}

// Empties the cells that have a text of csv_nulls. Not inlined, so that the parser is not slower
// for files without nulls.
void EmptyNulls(const FeedSchema& schema, std::vector<Cell>* cells);

}  // namespace pbx::feed
