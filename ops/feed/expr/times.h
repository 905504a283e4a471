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
  // Whether the offset is the same from the first to the last of these instants.
  bool Same(int64_t first, int64_t last) {
    Of(first);
    return last < until_;
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

// The date as 32 * month + day, of days since 0001-01-01. It counts years from March, in eras of
// 400 years; the constants are those of Neri and Schneider (2022), "Euclidean affine functions and
// their application to calendar algorithms".
inline uint32_t DateOf(uint32_t days) {
  const uint32_t quarters = 4 * (days + 306) + 3;  // of days since 0000-03-01
  const uint32_t of_century = quarters % 146097 | 3;
  const uint64_t of_year = uint64_t{2939745} * of_century;
  const uint32_t day = static_cast<uint32_t>(of_year) / 2939745 / 4;
  const uint32_t scaled = 2141 * day + 197913;
  const uint32_t month = (scaled >> 16) - (day >= 306 ? 12 : 0);
  return 32 * month + (scaled & 0xffff) / 2141 + 1;
}

// Rounded towards minus infinity. REQUIRES: by > 0.
inline int64_t FloorDivide(int64_t value, int64_t by) {
  return value / by - (value % by < 0 ? 1 : 0);
}

}  // namespace pbx::expr
