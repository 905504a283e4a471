#include "feed/expr/times.h"

#include <algorithm>
#include <limits>

namespace pbx::expr {
namespace {

// Reads n digits.
bool Digits(std::string_view* text, size_t n, int* value) {
  if (text->size() < n) return false;
  *value = 0;
  for (size_t i = 0; i < n; ++i) {
    const char c = (*text)[i];
    if (c < '0' || c > '9') return false;
    *value = *value * 10 + (c - '0');
  }
  text->remove_prefix(n);
  return true;
}

bool Mark(std::string_view* text, char mark) {
  if (text->empty() || text->front() != mark) return false;
  text->remove_prefix(1);
  return true;
}

// +08, +0800 or +08:00, which must be all of the text.
bool Offset(std::string_view text, int* seconds) {
  const bool minus = Mark(&text, '-');
  int hours = 0, minutes = 0;
  if ((!minus && !Mark(&text, '+')) || !Digits(&text, 2, &hours)) return false;
  if (!text.empty()) {
    Mark(&text, ':');
    if (!Digits(&text, 2, &minutes)) return false;
  }
  if (!text.empty() || hours > 23 || minutes > 59) return false;
  *seconds = (minus ? -60 : 60) * (hours * 60 + minutes);
  return true;
}

// The algorithms of the civil calendar count years from March, in eras of 400 years.
constexpr int kDaysOfEra = 146097;
constexpr int kFirstMarch = 719468;  // days from 0000-03-01 to 1970-01-01

bool IsLeap(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

bool DaysOf(int year, int month, int day, int64_t* days) {
  static constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1 || month < 1 || month > 12 || day < 1) return false;
  if (day > kDays[month - 1] + (month == 2 && IsLeap(year) ? 1 : 0)) return false;
  const int from_march = month <= 2 ? year - 1 : year;
  const int era = from_march / 400, of_era = from_march - era * 400;
  const int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int of_days = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
  *days = int64_t{era} * kDaysOfEra + of_days - kFirstMarch;
  return true;
}

}  // namespace

int64_t Zone::Local(int64_t instant) const { return LocalTimes(*this).Of(instant); }

void LocalTimes::Find(int64_t instant) {
  const std::vector<int64_t>& starts = zone_.starts;
  const auto after = std::upper_bound(starts.begin(), starts.end(), FloorDivide(instant, kSecond));
  const auto at = after == starts.begin() ? 0 : after - starts.begin() - 1;
  from_ = after == starts.begin() ? std::numeric_limits<int64_t>::min() : after[-1] * kSecond;
  until_ = after == starts.end() ? std::numeric_limits<int64_t>::max() : *after * kSecond;
  offset_ = zone_.offsets[static_cast<size_t>(at)] * kSecond;
}

Result<Zone> ZoneOf(const std::string& name, const Zones& known) {
  int seconds = 0;
  if (name == "UTC" || name == "Z" || Offset(name, &seconds)) return Zone{{0}, {seconds}};
  const auto found = known.find(name);
  if (found != known.end() && !found->second.offsets.empty() &&
      found->second.offsets.size() == found->second.starts.size()) {
    return found->second;
  }
  return Error(Code::kNotFound, "no zone '%.100s'", name.c_str());
}

bool ScanTime(std::string_view text, const Zone& zone, int64_t* local) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  int64_t days = 0, micros = 0;
  if (!Digits(&text, 4, &year) || !Mark(&text, '-') || !Digits(&text, 2, &month) ||
      !Mark(&text, '-') || !Digits(&text, 2, &day) || !DaysOf(year, month, day, &days)) {
    return false;
  }
  *local = days * kDay;
  if (text.empty()) return true;
  if (!Mark(&text, ' ') && !Mark(&text, 'T')) return false;
  if (!Digits(&text, 2, &hour) || !Mark(&text, ':') || !Digits(&text, 2, &minute)) return false;
  if (Mark(&text, ':') && !Digits(&text, 2, &second)) return false;
  if (hour > 23 || minute > 59 || second > 59) return false;
  if (Mark(&text, '.')) {
    int digit = 0, digits = 0;
    for (int64_t unit = kSecond / 10; Digits(&text, 1, &digit); unit /= 10, ++digits) {
      micros += digit * unit;
    }
    if (digits == 0) return false;
  }
  *local += (hour * 3600 + minute * 60 + second) * kSecond + micros;
  if (text.empty()) return true;
  int offset = 0;
  if (text != "Z" && !Offset(text, &offset)) return false;
  *local = zone.Local(*local - offset * kSecond);
  return true;
}

}  // namespace pbx::expr
