// Times and zones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace pbx::expr {

constexpr int64_t kSecond = 1000000;  // in microseconds
constexpr int64_t kDay = 86400 * kSecond;

// The offsets of a zone from UTC: offsets[i] applies from starts[i] on, offsets[0] before too.
struct Zone {
  std::vector<int64_t> starts;   // ascending, seconds since 1970 in UTC
  std::vector<int32_t> offsets;  // seconds; as many as starts, at least one

  // instant: microseconds since 1970 in UTC.
  int64_t Local(int64_t instant) const;
};
using Zones = std::map<std::string, Zone>;

// Zone::Local for many instants, which are often close to each other.
class LocalTimes {
 public:
  explicit LocalTimes(const Zone& zone) : zone_(zone) {}
  int64_t Of(int64_t instant) {
    if (instant < from_ || instant >= until_) Find(instant);
    return instant + offset_;
  }

 private:
  void Find(int64_t instant);

  const Zone& zone_;
  int64_t from_ = 0, until_ = 0, offset_ = 0;  // offset_ applies in [from_, until_)
};

// "UTC", "Z", "+08:00", "-0330", or a name of `known`. NotFound for others.
Result<Zone> ZoneOf(const std::string& name, const Zones& known);

// 2024-01-31, followed by nothing or by a blank or T and 23:59, 23:59:59 or 23:59:59.123456, and
// then by nothing, Z, +08, +0800 or +08:00. A time with an offset is an instant, which is moved to
// the zone. Digits beyond microseconds are dropped. False: no time of the years 1 to 9999.
bool ScanTime(std::string_view text, const Zone& zone, int64_t* local);

// Years 1 to 9999, in microseconds since 1970.
constexpr int64_t kFirstTime = -719162 * kDay;
constexpr int64_t kLastTime = 2932897 * kDay - 1;

struct Date {
  uint32_t month;
  uint32_t day;
};

// days: since 0001-01-01. It counts years from March, in eras of 400 years.
inline Date DateOf(uint32_t days) {
  const uint32_t of_era = (days + 306) % 146097;
  const uint32_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const uint32_t of_year = of_era - (365 * year + year / 4 - year / 100);
  const uint32_t month = (5 * of_year + 2) / 153;
  return {month < 10 ? month + 3 : month - 9, of_year - (153 * month + 2) / 5 + 1};
}

// Rounded towards minus infinity. REQUIRES: by > 0.
inline int64_t FloorDivide(int64_t value, int64_t by) {
  return value / by - (value % by < 0 ? 1 : 0);
}

}  // namespace pbx::expr
