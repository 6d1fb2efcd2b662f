// Races with the host: numbers in pinned memory that it reads or writes while a copy may still be under way.
//
// A copy with non_blocking=True between the card and pinned memory goes on while the script does. Until the host has
// waited for it, what it writes must not be read, and what it reads must not be written. Operators on the CPU are seen
// as torch calls them; arrays of NumPy's that look into the memory when they are given up, and by what they left there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sandtable {

// The kernel that has just begun copies this pinned memory, or into it, and nobody waits for it.
void copy_takes_off(const at::Tensor& host, bool writes_host);
// Forgets the copies that the host has waited for.
void settle_copies();
// The host reads the memory outside of torch's operators.
void host_reads_memory(const at::Tensor& tensor, const char* by);
// Begins to watch a view of memory that copies write; 0 if there are none. Its end is taken for the last time it is read.
int64_t begin_host_view(const at::Tensor& tensor);
void end_host_view(int64_t number);

} // namespace sandtable
