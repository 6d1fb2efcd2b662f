// The operators of the virtual GPU: one boxed kernel for all of them, and a few of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include "shapes.h"

namespace sandtable {

at::Tensor new_tensor(const Geometry& geometry, at::ScalarType dtype, size_t num_bytes, int device);
at::Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType dtype, int device); // contiguous
void resize_in_place(const at::Tensor& tensor, const Geometry& geometry);
void record_operator(uint32_t signature, int device);

void register_operators(); // the boxed kernel
void register_kernels();   // those that need their own
void register_sparse();    // tensors in coordinate format
void set_capability(int major);
// Called when the operator limit is reached; does not return.
void set_limit_function(void (*function)());

} // namespace sandtable
