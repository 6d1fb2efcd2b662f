// What differs between the releases of torch that the core is compiled against: 2.12 to 2.15.
#pragma once

#include <torch/headeronly/version.h>

#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else // 2.12
#include <torch/csrc/autograd/function.h>
#endif

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace sandtable {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#endif

} // namespace sandtable
