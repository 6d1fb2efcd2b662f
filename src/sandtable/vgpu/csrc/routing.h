// Routing: which positions unknown scores would choose.
//
// A router of a mixture of experts takes the best k of E scores for each token, and what follows, counts of tokens, splits
// of an all-to-all, sizes of products, hangs on its choice. Scores are unknown, so the choice is made here: real positions,
// the same on every rank, that add up as a router's do. Every expert gets its quota of tokens, equal by default or in
// proportion to weights, and tokens with the same experts are spread over the batch.
//
// With quotas n_e <= rows that add up to rows * k, lay the experts' quotas end to end on a line of length rows * k. Row i
// takes the experts at p, p + rows, ..., p + (k - 1) * rows for a permutation p of the rows: these are k different experts,
// because no quota is longer than the distance of two points (systematic sampling, Madow 1949).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace sandtable {

struct FactQuery;

struct Routing {
  std::string name = "balanced";
  double zipf = 0; // expert e has weight (e + 1) ** -zipf
  std::vector<std::vector<double>> weights; // by layer, or one list for all; used for as many experts as it has
};
void set_routing(Routing routing);
std::string routing_name();
void set_routing_layer(int64_t layer); // of the model, where it is known; -1
// Positions [rows, k] among `options`.
at::Tensor choose_positions(int64_t rows, int64_t k, int64_t options);
// The positions that an operator on unknown scores returns (topk, sort, argmax, multinomial); undefined if too many.
at::Tensor route(const FactQuery& query);

} // namespace sandtable
