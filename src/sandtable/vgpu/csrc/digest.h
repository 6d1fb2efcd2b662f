// Digests of 64 bits, and the pair of them that names the numbers in a block of memory (identity.h).
#pragma once

#include <cstdint>
#include <map>

#include "gradient_scale.h"

namespace sandtable {

using Digest = uint64_t;

struct Identity { // zeros: nothing was written yet
  Digest exact = 0;
  Digest outline = 0;
};

inline Digest mix(Digest a, Digest b) {
  uint64_t x = a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2));
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ULL;
  x ^= x >> 32;
  return x;
}
inline Identity mix(const Identity& a, const Identity& b) {
  return {mix(a.exact, b.exact), mix(a.outline, b.outline)};
}
inline Identity mix(const Identity& a, Digest b) {
  return {mix(a.exact, b), mix(a.outline, b)};
}
inline Identity same(Digest digest) {
  return {digest, digest};
}

// A part of a block that was written on its own: parameters and gradients in a flat buffer.
struct WrittenPart {
  int64_t end = 0; // in bytes of the storage
  Identity identity;
  GradientScale scale;
};
using Contents = std::map<int64_t, WrittenPart>; // by where they begin

} // namespace sandtable
