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
  int month;
  int day;
};
Date DateOf(int64_t days);  // since 1970-01-01

// Rounded towards minus infinity. REQUIRES: by > 0.
inline int64_t FloorDivide(int64_t value, int64_t by) {
  return value / by - (value % by < 0 ? 1 : 0);
}

}  // namespace pbx::expr
