#include "dense/pool.h"

#include "dense/onednn.h"

namespace pbx {

Result<ThreadPool*> DensePool() {
  const Result<const OneDnn*> dnn = FindOneDnn();
  if (!dnn.ok()) return dnn.status();
  static ThreadPool* const pool = new ThreadPool(dnn.value()->omp_get_max_threads());
  return pool;
}

}  // namespace pbx
