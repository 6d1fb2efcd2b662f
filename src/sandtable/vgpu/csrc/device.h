// Device management: which card and which stream is current, and what the rest of torch asks a CUDA backend.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace sandtable {

void set_device_count(int count);
int device_count();
int current_device();
void set_current_device(int device);
int64_t current_stream(int device);
c10::Stream current_c10_stream(int device);
void set_current_stream(c10::Stream stream);
c10::Stream pool_stream(int device, int priority);
// Streams that belong to a library (NCCL) and are never handed to the script.
c10::Stream library_stream(int device, int number);

at::Generator default_generator(int device);

// Draws a seed for a small random operator that is really computed, and moves the card's generator on.
uint64_t draw_seed(const at::Generator& generator);

} // namespace sandtable
