// What Paddle's device runtime needs of a GPU beyond cuda/memory.h: memory, streams and events as
// plain handles. A handle of a stream or of an event is never null.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "cuda/memory.h"

namespace pbx::gpu {

using hbm::Stream;
using Event = void*;

// 0 if there is none, or no driver. why: one line about it, if not null.
int DeviceCount(const char** why);
Status SetDevice(int device);
Status GetDevice(int* device);
Status MemoryOf(int device, size_t* all, size_t* left);

// what: in errors.
Status Allocate(const char* what, size_t bytes, bool pinned, void** data);
void Free(void* data, bool pinned);
Status Fill(void* data, unsigned char value, size_t bytes);

Status OpenStream(Stream* stream);
Status CloseStream(Stream stream);
bool IsDone(Stream stream);
// Calls function(argument) on a thread of the driver once the work before it is done.
Status Then(Stream stream, void (*function)(void*), void* argument);

Status OpenEvent(Event* event);
Status CloseEvent(Event event);
Status Record(Event event, Stream stream);
bool IsPast(Event event);
Status WaitFor(Event event);                  // on the host
Status MakeWait(Stream stream, Event event);  // later work of the stream

}  // namespace pbx::gpu
