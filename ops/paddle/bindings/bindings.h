// The parts of the Python module: one function per part, called by bindings.cc.
#pragma once

#include <pybind11/pybind11.h>

namespace pbx {

void BindTable(pybind11::module_& module);      // bind_table.cc: Table and its tiers
void BindMetric(pybind11::module_& module);     // bind_metric.cc: metrics and their states
void BindRanks(pybind11::module_& module);      // bind_ranks.cc: batches whose rows other ranks own
void BindDevice(pybind11::module_& module);     // bind_device.cc: such batches on a device
void BindCopies(pybind11::module_& module);     // bind_copies.cc: feeds to a device
void BindQuantize(pybind11::module_& module);   // bind_quantize.cc: formats of rows sent to ranks
void BindDense(pybind11::module_& module);      // bind_dense.cc: what box_mlp runs on
void BindHostGroup(pybind11::module_& module);  // bind_host_group.cc: HostGroup
void BindJobStore(pybind11::module_& module);   // bind_job_store.cc: StoreServer
void BindImport(pybind11::module_& module);     // bind_import.cc: rows of one table into another
void BindMem(pybind11::module_& module);        // bind_mem.cc: the MEM tier alone
void BindSsd(pybind11::module_& module);        // bind_ssd.cc: the SSD tier alone
void BindSegment(pybind11::module_& module);    // bind_segment.cc: single segment files
void BindFeed(pybind11::module_& module);       // bind_feed.cc: schema, parser, instances, batches
void BindHoldout(pybind11::module_& module);    // bind_holdout.cc: rows that training leaves out
void BindParsed(pybind11::module_& module);     // bind_parsed.cc: parsed files, spilled chunks
void BindSequences(pybind11::module_& module);  // bind_sequences.cc: sequences of users
void BindSide(pybind11::module_& module);       // bind_side.cc: side tables and their text
void BindServe(pybind11::module_& module);      // bind_serve.cc: export files
void BindLibrary(pybind11::module_& module);    // bind_library.cc: the inputs of served models

}  // namespace pbx
