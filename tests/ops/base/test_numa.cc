#include "base/numa.h"

#include "base/buffer.h"
#include "check.h"

namespace pbx {
namespace {

using Nodes = std::vector<int>;

TEST(node_lists_are_read_as_the_kernel_writes_them) {
  CHECK((ParseNodeList("0\n") == Nodes{0}));
  CHECK((ParseNodeList("0-1\n") == Nodes{0, 1}));
  CHECK((ParseNodeList("0,2-4,7") == Nodes{0, 2, 3, 4, 7}));
}

TEST(what_is_no_node_list_has_no_nodes) {
  for (const char* text : {"", "\n", "a", "1-", "3-1", "0,", "0-x", "0;1", "99999", "-1"}) {
    CHECK(ParseNodeList(text).empty());
  }
}

TEST(a_buffer_is_zeroed_wherever_its_pages_lie) {
  CHECK(!MemoryNodes().empty() || !InterleaveOverNodes(nullptr, 0));
  Result<Buffer> buffer = Buffer::Allocate(3 * Buffer::kHugePage);
  CHECK_OK(buffer.status());
  size_t wrong = 0;
  for (size_t i = 0; i < buffer.value().size(); i += 64) wrong += buffer.value().data()[i] != 0;
  CHECK_EQ(wrong, 0u);
}

}  // namespace
}  // namespace pbx
