// Identities: tensors of equal identity hold the same numbers, on whichever ranks they are.
//
// Large tensors have no values here, but what they would hold follows from how they were made. So each block has a
// digest of its history: the operators and their arguments, the numbers that the host copied in, the seed and offset of
// a generator, and of a collective its group and number. Ranks whose replicas of a weight get different identities have
// different weights on a card. The reverse holds, too, but for numbers that happen to be equal: 1 + 1 is not 2 here.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shapes.h"

namespace sandtable {

using Identity = uint64_t; // 0: nothing was written yet

inline Identity mix(Identity a, Identity b) {
  uint64_t x = a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6) + (a >> 2));
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ULL;
  x ^= x >> 32;
  return x;
}
Identity digest_of(const std::string& text);

// Off, nothing is followed and all identities are 0.
void follow_identities(bool on);
bool follows_identities();

// Of the elements of this tensor, which may be a view; of one on the host, of its contents.
Identity identity_of(const at::Tensor& tensor);
// The tensor was written whole with numbers of this identity; what else its storage holds stays.
void write_identity(const at::Tensor& tensor, Identity identity);

// What came from the host onto the card, and what was drawn there, in order; `row` is the next one of the tape.
struct HostCopy {
  Identity identity;
  int64_t num_bytes;
  uint32_t line;
  int64_t row;
};
struct Draw {
  Identity identity;
  int64_t num_elements;
  uint32_t line;
  int64_t row;
};
void note_host_copy(const at::Tensor& from, Identity identity);
void note_draw(Identity identity, int64_t num_elements);
const std::vector<HostCopy>& host_copies();
const std::vector<Draw>& draws();
// Numbers on the host that were left out: what they would have been.
void name_host_numbers(const at::Tensor& tensor, Identity identity);

// The identities of an operator's inputs, before it writes. `drawn` is what its generator gave.
class Lineage {
 public:
  Lineage(const OperatorInfo& info, const torch::jit::Stack& stack);
  void add(Identity drawn) { common_ = mix(common_, drawn); }
  // Result number `index`, item `item` of a list (0 where it is none).
  Identity of(size_t index, size_t item) const;

 private:
  Identity common_;
  bool is_by_item_;            // item k of each result follows from item k of each list
  std::vector<Identity> items_;
};

} // namespace sandtable
