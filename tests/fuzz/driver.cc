// Runs a fuzz target for a while with mutated inputs: libFuzzer's interface without libFuzzer, for
// compilers that have none. It knows nothing of coverage; it relies on good seeds and on speed.
//
//   fuzz_x [--seconds N] [--seed S] [--format F] [seed file ...]
//   fuzz_x --replay fuzz_x.input
//
// --format F keeps the first byte modulo 4 at F, where targets choose what to do with the rest.
// The input being run is kept in fuzz_x.input beside it (8 bytes of size, then the bytes), which
// outlives any kind of death, also a kill; it is removed after a clean end.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "seeds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMaxInput = size_t{1} << 16;
constexpr size_t kPool = 256;          // inputs that further mutations start from, beside the seeds
constexpr unsigned kHangSeconds = 60;  // over the time asked for, before SIGALRM ends a hang
// "<program>.input": programs that run side by side in one folder have one each.
std::string input_file;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(pbx::Mix(seed + 1)) {}
  uint64_t Next() { return pbx::Mix(state_ += 0x9e3779b97f4a7c15ULL); }
  size_t Below(size_t n) { return n == 0 ? 0 : Next() % n; }

 private:
  uint64_t state_;
};

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read\n", path);
    std::exit(2);
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

const std::vector<std::string>& Tokens() {
  static const std::vector<std::string> tokens = {"18446744073709551615",
                                                  "18446744073709551616",
                                                  "9223372036854775808",
                                                  "-1",
                                                  "0",
                                                  "1",
                                                  "+1",
                                                  "4294967296",
                                                  "99999999999999999999999999999999",
                                                  "00000000000000000000000001",
                                                  "0.5",
                                                  "1e400",
                                                  "-1e-400",
                                                  "1e",
                                                  ".",
                                                  "nan",
                                                  "inf",
                                                  "0x1p3",
                                                  "3.4028236e38",
                                                  "\t",
                                                  "\t\t",
                                                  " ",
                                                  "  ",
                                                  ":",
                                                  "::",
                                                  "\n",
                                                  "\r\n",
                                                  "\r",
                                                  "\n\n",
                                                  std::string(1, '\0'),
                                                  "\xff",
                                                  "\x80",
                                                  "-",
                                                  "ffffffffffffffff",
                                                  "-9223372036854775808",
                                                  std::string(300, '7'),
                                                  std::string(300, ' ')};
  return tokens;
}

void MutateOnce(const std::string& other, Random* random, std::string* input) {
  const size_t at = random->Below(input->size() + 1);
  const size_t length = random->Below(std::min<size_t>(input->size() - at, 64) + 1);
  switch (random->Below(9)) {
    case 0:  // flip a bit
      if (at < input->size())
        (*input)[at] = static_cast<char>((*input)[at] ^ 1 << random->Below(8));
      break;
    case 1:  // any byte
      if (at < input->size()) (*input)[at] = static_cast<char>(random->Next());
      break;
    case 2:  // another digit
      if (at < input->size()) (*input)[at] = static_cast<char>('0' + random->Below(10));
      break;
    case 3: input->insert(at, Tokens()[random->Below(Tokens().size())]); break;
    case 4: input->replace(at, length, Tokens()[random->Below(Tokens().size())]); break;
    case 5: input->erase(at, length); break;
    case 6: input->insert(random->Below(input->size() + 1), input->substr(at, length)); break;
    case 7: {  // splice
      const size_t from = random->Below(other.size() + 1);
      input->replace(at, std::string::npos, other, from, std::string::npos);
      break;
    }
    case 8:  // truncate, but not often: it makes inputs small for good
      if (random->Below(4) == 0) input->resize(at);
      break;
  }
  if (input->size() > kMaxInput) input->resize(kMaxInput);
}

// The target gets a block of exactly the input's size, so that a sanitizer sees reads beyond it.
void RunTarget(const std::string& input) {
  const std::unique_ptr<uint8_t[]> block(new uint8_t[input.size()]);
  std::memcpy(block.get(), input.data(), input.size());
  LLVMFuzzerTestOneInput(block.get(), input.size());
}

// The shared mapping of input_file: what is stored there is in the file even when the process dies.
char* MapInputFile() {
  const int fd = open(input_file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const size_t bytes = sizeof(uint64_t) + kMaxInput;
  void* mapped = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (mapped == MAP_FAILED) {
    std::perror(input_file.c_str());
    std::exit(2);
  }
  close(fd);
  return static_cast<char*>(mapped);
}

int Replay(const char* path) {
  std::string bytes = ReadFile(path);
  uint64_t size = 0;
  if (bytes.size() >= sizeof(size)) std::memcpy(&size, bytes.data(), sizeof(size));
  if (bytes.size() < sizeof(size) || size > bytes.size() - sizeof(size)) {
    std::fprintf(stderr, "%s: not an input kept by this driver\n", path);
    return 2;
  }
  RunTarget(bytes.substr(sizeof(size), size));
  std::printf("%s: %zu bytes, clean\n", path, static_cast<size_t>(size));
  return 0;
}

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  int format = -1;
  std::vector<std::string> seeds;
};

void Fuzz(const Options& options) {
  char* const kept = MapInputFile();
  Random random(options.seed);
  std::vector<std::string> pool = options.seeds;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto start = now();
  const auto end = start + std::chrono::duration<double>(options.seconds);
  alarm(static_cast<unsigned>(options.seconds) + kHangSeconds);
  uint64_t runs = 0;
  for (std::string input; now() < end; ++runs) {
    input = pool[random.Below(pool.size())];
    if (runs >= options.seeds.size()) {
      const std::string& other = pool[random.Below(pool.size())];
      for (size_t i = random.Below(6); i-- > 0;) MutateOnce(other, &random, &input);
    } else {
      input = options.seeds[runs];
    }
    if (options.format >= 0 && !input.empty()) {
      input[0] = static_cast<char>((input[0] & ~3) | options.format);
    }
    const uint64_t size = input.size();
    std::memcpy(kept, &size, sizeof(size));
    std::memcpy(kept + sizeof(size), input.data(), input.size());
    RunTarget(input);
    if (random.Below(32) != 0) continue;
    if (pool.size() < options.seeds.size() + kPool) {
      pool.push_back(input);
    } else {
      pool[options.seeds.size() + random.Below(kPool)] = input;
    }
  }
  const double took = std::chrono::duration<double>(now() - start).count();
  std::printf("%llu executions in %.1f s, clean\n", static_cast<unsigned long long>(runs), took);
  unlink(input_file.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  input_file = std::string(argv[0]) + ".input";
  if (AddFuzzSeeds != nullptr) AddFuzzSeeds(&options.seeds);
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      options.seeds.push_back(ReadFile(argv[i]).substr(0, kMaxInput));
      continue;
    }
    const char* const value = i + 1 < argc ? argv[++i] : "";
    if (name == "--replay") return Replay(value);
    if (name == "--seconds") {
      options.seconds = std::strtod(value, nullptr);
    } else if (name == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--format") {
      options.format = static_cast<int>(std::strtoul(value, nullptr, 10) & 3);
    } else {
      std::fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--format F] [file ...]\n", argv[0]);
      return 2;
    }
  }
  if (options.seeds.empty()) options.seeds.push_back(std::string(1, '\0'));
  Fuzz(options);
  return 0;
}
