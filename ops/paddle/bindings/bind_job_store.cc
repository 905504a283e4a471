#include <memory>

#include "paddle/bindings/bindings.h"
#include "paddle/phi/core/distributed/store/tcp_store.h"

namespace py = pybind11;

namespace pbx {
namespace {

// The server of a Paddle TCPStore, on a socket that listens already. A TCPStore that opens its
// server itself listens on every address of the host, and has no option for that.
class StoreServer {
 public:
  // Takes over the socket.
  explicit StoreServer(int socket)
      : daemon_(phi::distributed::detail::MasterDaemon::createDaemon(socket, 0, 0)) {
    daemon_->start();
  }

 private:
  std::unique_ptr<phi::distributed::detail::MasterDaemon> daemon_;  // ends its thread
};

}  // namespace

void BindJobStore(py::module_& module) {
  py::class_<StoreServer>(module, "StoreServer").def(py::init<int>());
}

}  // namespace pbx
