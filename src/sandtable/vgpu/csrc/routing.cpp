#include "routing.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>

#include "exclusions.h"
#include "fact_rules.h"
#include "shapes.h"

namespace sandtable {
namespace {

constexpr int64_t kMostPositions = int64_t{2} << 20;
constexpr int64_t kMostExperts = 1024; // more options are words or tokens, and not weighted
constexpr size_t kMostRemembered = 64;
constexpr size_t kMostRestricted = 8;

Routing policy;
int64_t current_layer = -1;
std::mutex routing_mutex;
std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, at::Tensor> remembered; // by rows, k, options and layer

// A choice that a mask restricted. Layer after layer, and again in recomputation, the masks are the same.
struct RestrictedChoice {
  int64_t k, layer;
  at::Tensor excluded, positions;
};
std::deque<RestrictedChoice> restricted_choices; // the latest

int64_t weighted_layer() {
  return policy.weights.size() > 1 ? current_layer : -1;
}

const std::vector<double>* listed_weights(int64_t options) {
  if (policy.weights.empty())
    return nullptr;
  size_t layer = current_layer < 0 ? 0 : static_cast<size_t>(current_layer) % policy.weights.size();
  const std::vector<double>& weights = policy.weights[layer];
  return static_cast<int64_t>(weights.size()) == options ? &weights : nullptr;
}

std::vector<double> weights_of(int64_t options) {
  std::vector<double> weights(options, 1.0);
  if (const std::vector<double>* listed = listed_weights(options))
    weights = *listed;
  else if (policy.zipf > 0 && options <= kMostExperts)
    for (int64_t expert = 0; expert < options; ++expert)
      weights[expert] = std::pow(expert + 1.0, -policy.zipf);
  return weights;
}

// How many rows choose each option: in proportion to the weights, but none more often than there are rows.
std::vector<int64_t> quotas_of(int64_t rows, int64_t k, int64_t options) {
  std::vector<double> weights = weights_of(options), shares(options, 0);
  std::vector<bool> is_full(options, false);
  double left = static_cast<double>(k);
  for (bool changed = true; changed;) {
    changed = false;
    double weight = 0;
    for (int64_t e = 0; e < options; ++e)
      weight += is_full[e] ? 0 : weights[e];
    for (int64_t e = 0; e < options; ++e) {
      if (is_full[e])
        continue;
      shares[e] = weight > 0 ? left * weights[e] / weight : 0;
      if (shares[e] > 1 + 1e-12) {
        shares[e] = 1;
        is_full[e] = changed = true;
      }
    }
    left = k - static_cast<double>(std::count(is_full.begin(), is_full.end(), true));
  }
  // Whole tokens: each boundary on the line is rounded, so the quotas add up.
  std::vector<int64_t> quotas(options);
  double sum = 0;
  int64_t before = 0;
  for (int64_t e = 0; e < options; ++e) {
    sum += shares[e];
    int64_t here = e + 1 == options ? rows * k : std::llround(sum * static_cast<double>(rows));
    quotas[e] = std::min(here - before, rows);
    before += quotas[e];
  }
  for (int64_t e = 0; e < options && before < rows * k; ++e) { // what rounding left over, where there is room
    int64_t more = std::min(rows - quotas[e], rows * k - before);
    quotas[e] += more;
    before += more;
  }
  return quotas;
}

// A step through the rows that visits each once and leaps far: near the golden section, without a common divisor.
int64_t stride_of(int64_t rows) {
  int64_t stride = std::max<int64_t>(static_cast<int64_t>(0.6180339887498949 * static_cast<double>(rows)), 1);
  while (std::gcd(stride, rows) != 1)
    ++stride;
  return stride;
}

std::vector<int64_t> owners_of_line(const std::vector<int64_t>& quotas) {
  std::vector<int64_t> owners;
  for (size_t e = 0; e < quotas.size(); ++e)
    owners.insert(owners.end(), quotas[e], static_cast<int64_t>(e));
  return owners;
}

at::Tensor make_positions(int64_t rows, int64_t k, int64_t options) {
  at::Tensor positions = at::empty({rows, k}, at::kLong);
  int64_t* out = positions.mutable_data_ptr<int64_t>();
  bool is_order = k == options; // sorted: the best by quota, the others behind it
  std::vector<int64_t> owners = owners_of_line(quotas_of(rows, is_order ? 1 : k, options));
  int64_t stride = stride_of(rows), point = 0;
  for (int64_t row = 0; row < rows; ++row, point = (point + stride) % rows)
    for (int64_t j = 0; j < k; ++j)
      *out++ = is_order ? (owners[point] + j) % options : owners[point + rows * ((j + row) % k)];
  return positions;
}

// The same where a mask rules out some options of each row: a row takes those of the others that are furthest behind their
// quotas. Where too few are left, it also takes what is ruled out.
at::Tensor make_positions_among(const at::Tensor& excluded, int64_t k) {
  int64_t rows = excluded.size(0), options = excluded.size(1);
  at::Tensor positions = at::empty({rows, k}, at::kLong);
  int64_t* out = positions.mutable_data_ptr<int64_t>();
  const bool* is_out = excluded.const_data_ptr<bool>();
  std::vector<int64_t> left = quotas_of(rows, k == options ? 1 : k, options), order(options);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t e = 0; e < options; ++e) // begins elsewhere in each row, so that equals take turns
      order[e] = (row + e) % options;
    const bool* is_row_out = is_out + row * options;
    auto goes_before = [&](int64_t a, int64_t b) {
      return is_row_out[a] != is_row_out[b] ? is_row_out[b] : left[a] > left[b];
    };
    std::stable_sort(order.begin(), order.end(), goes_before);
    for (int64_t j = 0; j < k; ++j) {
      *out++ = order[j];
      left[order[j]] -= k < options || j == 0;
    }
  }
  return positions;
}

at::Tensor choose_positions_among(const at::Tensor& excluded, int64_t k) {
  std::lock_guard<std::mutex> lock(routing_mutex);
  int64_t layer = weighted_layer();
  for (const RestrictedChoice& choice : restricted_choices)
    if (choice.k == k && choice.layer == layer && choice.excluded.equal(excluded))
      return choice.positions;
  at::Tensor positions = make_positions_among(excluded, k);
  if (restricted_choices.size() == kMostRestricted)
    restricted_choices.pop_front();
  restricted_choices.push_back({k, layer, excluded.clone(), positions});
  return positions;
}

} // namespace

void set_routing(Routing routing) {
  std::lock_guard<std::mutex> lock(routing_mutex);
  policy = std::move(routing);
  remembered.clear();
  restricted_choices.clear();
}

std::string routing_name() {
  return policy.name;
}

void set_routing_layer(int64_t layer) {
  current_layer = layer;
}

at::Tensor choose_positions(int64_t rows, int64_t k, int64_t options) {
  std::lock_guard<std::mutex> lock(routing_mutex);
  int64_t layer = weighted_layer();
  if (remembered.size() > kMostRemembered)
    remembered.clear();
  at::Tensor& positions = remembered[{rows, k, options, layer}];
  if (!positions.defined())
    positions = make_positions(rows, k, options);
  return positions;
}

at::Tensor route(const FactQuery& query) {
  const at::Tensor& scores = query.tensor(0);
  int64_t numel = query.numel(), options = query.options();
  if (numel == 0 || numel > kMostPositions || options == 0)
    return {};
  const auto& sizes = query.result.geometry.sizes;
  // The dimension of the result along which the choices of one row lie; argmax leaves none.
  const c10::IValue* dim = query.named("dim");
  int64_t along = scores.dim() == 0 ? 0 : (dim != nullptr && dim->isInt() ? dim->toInt() : -1);
  along = scores.dim() == 0 ? 0 : (along + scores.dim()) % scores.dim();
  bool has_choices = scores.dim() > 0 && static_cast<int64_t>(sizes.size()) == scores.dim() && numel > 0;
  int64_t k = has_choices ? sizes[along] : 1;
  if (k > options) // drawn with replacement
    has_choices = false, k = 1;
  at::Tensor positions, excluded = scores.dim() > 0 ? excluded_elements(scores) : at::Tensor();
  if (excluded.defined() && k <= options)
    positions = choose_positions_among(excluded.movedim(along, -1).reshape({numel / k, options}).contiguous(), k);
  else
    positions = choose_positions(numel / k, k, options);
  if (!has_choices)
    return positions.view(sizes);
  std::vector<int64_t> rows_first(sizes.begin(), sizes.end());
  rows_first.erase(rows_first.begin() + along);
  rows_first.push_back(k);
  return positions.view(rows_first).movedim(-1, along);
}

} // namespace sandtable
