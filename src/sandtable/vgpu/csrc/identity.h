// Identities: tensors of equal identity hold the same numbers, on whichever ranks they are.
//
// Large tensors have no values here, but what they would hold follows from how they were made. So each block has a
// digest of its history: the operators and their arguments, the numbers that the host copied in, the seed and offset of
// a generator, and of a collective its group and number. Ranks whose replicas of a weight get different identities have
// different weights on a card, but for numbers that happen to be equal: 1 + 1 is not 2 here.
//
// What a collective gives has a name made of its group and its number in it, so results of two groups differ in identity
// though all put in the same (ranks of one replica that reduce over different groups). Whether they differ nobody knows
// before all ranks are compared. So each identity comes with an outline, in which the group is only its size: equal
// identities are equal numbers, and different outlines are different numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "digest.h"
#include "shapes.h"

namespace sandtable {

Digest digest_of(const std::string& text);

// Off, nothing is followed and all identities are 0.
void follow_identities(bool on);
bool follows_identities();

// Of the elements of this tensor, which may be a view; of one on the host, of its contents.
Identity identity_of(const at::Tensor& tensor);
// The tensor was written whole with numbers of this identity; what else its storage holds stays.
void write_identity(const at::Tensor& tensor, const Identity& identity);

// What came from the host onto the card, and what was drawn there, in order; `row` is the next one of the tape.
struct HostCopy {
  Digest identity;
  int64_t num_bytes;
  uint32_t line;
  int64_t row;
};
struct Draw {
  Digest identity;
  int64_t num_elements;
  uint32_t line;
  int64_t row;
};
void note_host_copy(const at::Tensor& from, Digest identity);
void note_draw(Digest identity, int64_t num_elements);
const std::vector<HostCopy>& host_copies();
const std::vector<Draw>& draws();
// Numbers on the host that were left out: what they would have been.
void name_host_numbers(const at::Tensor& tensor, Digest identity);

// The identities of an operator's inputs, before it writes. `drawn` is what its generator gave.
class Lineage {
 public:
  Lineage(const OperatorInfo& info, const torch::jit::Stack& stack);
  void add(Digest drawn) { common_ = mix(common_, drawn); }
  // Result number `index`, item `item` of a list (0 where it is none).
  Identity of(size_t index, size_t item) const;

 private:
  Identity common_;
  bool is_by_item_;            // item k of each result follows from item k of each list
  std::vector<Identity> items_;
};

} // namespace sandtable
