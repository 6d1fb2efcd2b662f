#include "fact_rules.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "shapes.h"
#include "values.h"

namespace sandtable {

const c10::IValue& FactQuery::argument(size_t index) const {
  return stack[stack.size() - schema.arguments().size() + index];
}

const c10::IValue* FactQuery::named(const char* name) const {
  auto index = schema.argumentIndexWithName(name);
  return index && !argument(*index).isNone() ? &argument(*index) : nullptr;
}

Facts FactQuery::facts(size_t index) const {
  const c10::IValue& value = argument(index);
  if (value.isTensor() && value.toTensor().defined())
    return facts_of(value.toTensor());
  if (value.isBool())
    return Facts::exactly(value.toBool(), at::kBool);
  if (value.isInt())
    return Facts::exactly(static_cast<double>(value.toInt()), at::kLong);
  return value.isDouble() ? Facts::exactly(value.toDouble(), at::kDouble) : Facts::presumed(dtype());
}

Facts FactQuery::facts_of_all(size_t index) const {
  std::optional<Facts> all;
  for (const at::Tensor& tensor : argument(index).toTensorVector())
    if (tensor.defined() && tensor.numel() > 0)
      all = all ? either(*all, facts_of(tensor)) : facts_of(tensor);
  return all ? *all : Facts::presumed(dtype());
}

at::ScalarType FactQuery::dtype() const {
  return result.dtype;
}

int64_t FactQuery::numel() const {
  int64_t numel = 1;
  for (int64_t size : result.geometry.sizes)
    numel *= size;
  return numel;
}

int64_t FactQuery::reduced() const {
  return tensor(0).numel() / std::max<int64_t>(numel(), 1);
}

int64_t FactQuery::options() const {
  const at::Tensor& scores = tensor(0);
  const c10::IValue* dim = named("dim");
  bool has_dim = schema.argumentIndexWithName("dim").has_value();
  if (has_dim && dim == nullptr)
    return scores.numel(); // argmax of everything
  return scores.dim() == 0 ? 1 : scores.size(dim != nullptr && dim->isInt() ? dim->toInt() : -1);
}

namespace {

using Query = const FactQuery&;

Facts between(Query query, double low, double high) {
  return Facts::within(low, high, query.dtype());
}

Facts unknown(Query query) {
  return Facts::presumed(query.dtype());
}

// Where infinities or NaN may come in.
Facts anything(Query query) {
  return c10::isFloatingType(query.dtype()) ? Facts{query.dtype(), -INFINITY, INFINITY, true} : unknown(query);
}

// Is it this operator, in place or not?
bool is(Query query, const std::string& base) {
  const std::string& name = query.schema.name();
  return name.compare(0, base.size(), base) == 0 && (name.size() == base.size() || name.substr(base.size()) == "_");
}

bool has_flag(Query query, const char* name) {
  const c10::IValue* flag = query.named(name);
  return flag != nullptr && flag->isBool() && flag->toBool();
}

Facts without_total(Facts facts) {
  facts.total.reset();
  return facts;
}

// ---- values that stay what they are ----

Facts copied(Query query) {
  Facts facts = cast(query.facts(0), query.dtype());
  return query.numel() == query.tensor(0).numel() ? facts : without_total(facts);
}

Facts chosen(Query query) { // some of the elements, some perhaps twice
  return without_total(cast(query.facts(0), query.dtype()));
}

Facts joined(Query query) {
  return without_total(cast(query.facts_of_all(0), query.dtype()));
}

Facts with_zero(Query query) {
  return either(chosen(query), Facts::exactly(0, query.dtype()));
}

template <size_t index>
Facts with_argument(Query query) { // of which argument `index` replaces some
  if (has_flag(query, "accumulate") || query.named("reduce") != nullptr)
    return query.facts(0).is_finite() && query.facts(index).is_finite() ? unknown(query) : anything(query);
  return either(chosen(query), cast(query.facts(index), query.dtype()));
}

Facts padded(Query query) {
  const c10::IValue* value = query.named("value");
  double padding = value == nullptr ? 0 : value->toScalar().toDouble();
  return either(chosen(query), Facts::exactly(padding, query.dtype()));
}

Facts selected(Query query) { // where(condition, a, b)
  return either(cast(query.facts(1), query.dtype()), cast(query.facts(2), query.dtype()));
}

// ---- values out of nothing ----

Facts filled(Query query) {
  Facts value = query.facts(1);
  if (value.low != value.high || value.may_be_nan)
    return without_total(cast(value, query.dtype()));
  return Facts::exactly(cast(value, query.dtype()).low, query.dtype(), query.numel());
}

Facts zeroed(Query query) {
  return Facts::exactly(0, query.dtype(), query.numel());
}

Facts counted_up(Query query) { // arange
  const c10::IValue* start = query.named("start");
  const c10::IValue* end = query.named("end");
  double first = start == nullptr ? 0 : start->toScalar().toDouble(), last = end->toScalar().toDouble();
  bool is_whole = c10::isIntegralType(query.dtype(), false);
  return between(query, std::min(first, last + is_whole), std::max(first, last - is_whole));
}

Facts drawn_between(Query query) { // uniform_(from, to)
  return between(query, query.facts(1).low, query.facts(2).high);
}

Facts drawn_whole(Query query) { // random_(from, to)
  const c10::IValue *from = query.named("from"), *to = query.named("to");
  if (to == nullptr)
    return from == nullptr ? between(query, 0, Facts::presumed(query.dtype()).high) : unknown(query);
  return between(query, from == nullptr ? 0 : from->toInt(), static_cast<double>(to->toInt() - 1));
}

Facts permuted(Query query) { // randperm
  return between(query, 0, std::max<double>(static_cast<double>(query.numel()) - 1, 0));
}

// ---- ranges of functions ----

template <int low, int high>
Facts of_range(Query query) {
  return between(query, low, high);
}

Facts never_negative(Query query) {
  return query.facts(0).is_finite() ? between(query, 0, kLargest) : anything(query);
}

Facts magnitude(Query query) {
  Facts x = query.facts(0);
  double low = std::min(std::abs(x.low), std::abs(x.high)), high = std::max(std::abs(x.low), std::abs(x.high));
  Facts facts = between(query, x.low <= 0 && x.high >= 0 ? 0 : low, high);
  facts.may_be_nan = x.may_be_nan;
  return facts;
}

Facts negated(Query query) {
  return scaled(query.facts(0), -1, query.dtype());
}

Facts rectified(Query query) {
  Facts x = query.facts(0);
  Facts facts = between(query, std::max(x.low, 0.0), std::max(x.high, 0.0));
  facts.may_be_nan = x.may_be_nan;
  return facts;
}

Facts squared(Query query) { // pow by a number
  const c10::IValue& exponent = query.argument(1);
  bool is_even = exponent.isInt() ? exponent.toInt() % 2 == 0
                                  : exponent.isDouble() && std::fmod(exponent.toDouble(), 2) == 0;
  if (is_even || query.facts(0).low >= 0)
    return never_negative(query);
  return query.facts(0).is_finite() ? unknown(query) : anything(query);
}

template <double (*function)(double)>
Facts monotonic(Query query) { // floor, ceil, ...
  Facts x = query.facts(0);
  Facts facts = between(query, function(x.low), function(x.high));
  facts.may_be_nan = x.may_be_nan;
  return facts;
}

Facts limited(Query query) { // clamp, with numbers or tensors
  Facts x = query.facts(0);
  Facts facts = cast(x, query.dtype());
  auto limit = [](const c10::IValue& bound) {
    return bound.isTensor() ? facts_of(bound.toTensor()) : Facts::exactly(bound.toScalar().toDouble(), at::kDouble);
  };
  if (const c10::IValue* least = query.named("min"))
    facts = largest_of(facts, limit(*least), query.dtype());
  if (const c10::IValue* most = query.named("max"))
    facts = smallest_of(facts, limit(*most), query.dtype());
  return without_total(facts);
}

// ---- arithmetic ----

template <int sign>
Facts added(Query query) {
  const c10::IValue* alpha = query.named("alpha");
  double factor = sign * (alpha == nullptr ? 1.0 : alpha->toScalar().toDouble());
  return sum_of(query.facts(0), scaled(query.facts(1), factor, at::kDouble), query.dtype());
}

Facts multiplied(Query query) {
  Facts a = query.facts(0), b = query.facts(1);
  if (b.low == b.high && !b.may_be_nan)
    return scaled(a, b.low, query.dtype());
  if (a.low == a.high && !a.may_be_nan)
    return scaled(b, a.low, query.dtype());
  if (!a.is_finite() || !b.is_finite())
    return anything(query);
  double corners[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  auto bound = [](double x) { return std::isinf(x) ? std::copysign(kLargest, x) : x; };
  return between(
      query, bound(*std::min_element(corners, corners + 4)), bound(*std::max_element(corners, corners + 4)));
}

Facts divided(Query query) {
  Facts a = query.facts(0), b = query.facts(1);
  const c10::IValue* rounding = query.named("rounding_mode");
  bool is_floor = is(query, "aten::floor_divide") || (rounding != nullptr && rounding->toStringRef() == "floor");
  if (!a.is_finite() || !b.is_finite())
    return anything(query);
  if (b.low == b.high && b.low != 0) {
    double first = a.low / b.low, second = a.high / b.low;
    auto whole = [&](double ratio) { return is_floor ? std::floor(ratio) : rounding != nullptr ? std::trunc(ratio) : ratio; };
    auto bound = [](double x) { return std::isinf(x) ? std::copysign(kLargest, x) : x; };
    return between(query, bound(whole(std::min(first, second))), bound(whole(std::max(first, second))));
  }
  // Nothing is divided by zero in a healthy run.
  if (a.low >= 0 && b.low >= 0)
    return between(query, 0, c10::isIntegralType(query.dtype(), true) ? a.high : kLargest);
  return unknown(query);
}

Facts left_over(Query query) { // remainder, whose sign is the divisor's
  Facts b = query.facts(1);
  bool is_whole = c10::isIntegralType(query.dtype(), false);
  return b.is_finite() && query.facts(0).is_finite() && b.low > 0 ? between(query, 0, b.high - is_whole) : unknown(query);
}

Facts larger(Query query) {
  return largest_of(query.facts(0), query.facts(1), query.dtype());
}

Facts smaller(Query query) {
  return smallest_of(query.facts(0), query.facts(1), query.dtype());
}

// ---- comparisons and logic ----

Facts always(bool value) {
  return Facts::exactly(value, at::kBool);
}

bool are_same(Query query) {
  const c10::IValue &a = query.argument(0), &b = query.argument(1);
  return a.isTensor() && b.isTensor() && a.toTensor().is_same(b.toTensor());
}

bool are_apart(const Facts& a, const Facts& b) {
  return a.high < b.low || b.high < a.low;
}

template <bool if_equal>
Facts equal_or_not(Query query) {
  Facts a = query.facts(0), b = query.facts(1);
  bool no_nan = !a.may_be_nan && !b.may_be_nan;
  if (no_nan && (are_same(query) || (a.low == a.high && b.low == b.high && a.low == b.low)))
    return cast(always(if_equal), query.dtype());
  bool is_infinite = std::isinf(b.low) && b.low == b.high && a.is_finite();
  if (is_infinite || are_apart(a, b))
    return cast(always(!if_equal), query.dtype());
  return between(query, 0, 1);
}

template <bool or_equal, bool turned>
Facts less_than(Query query) { // a < b, a <= b; turned: a > b, a >= b
  Facts a = query.facts(turned ? 1 : 0), b = query.facts(turned ? 0 : 1);
  bool no_nan = !a.may_be_nan && !b.may_be_nan;
  bool is_always = no_nan && (or_equal ? a.high <= b.low || are_same(query) : a.high < b.low);
  bool is_never = or_equal ? a.low > b.high : a.low >= b.high || (no_nan && are_same(query));
  if (is_always || is_never)
    return cast(always(is_always), query.dtype());
  return between(query, 0, 1);
}

template <bool value>
Facts if_finite(Query query) { // isfinite: true; isnan, isinf: false
  return query.facts(0).is_finite() ? always(value) : unknown(query);
}

Facts not_true(Query query) {
  Facts x = truth(query.facts(0));
  return cast(Facts::within(1 - x.high, 1 - x.low, at::kBool), query.dtype());
}

Facts inverted(Query query) { // ~x
  Facts x = query.facts(0);
  return query.dtype() == at::kBool ? not_true(query) : between(query, -1 - x.high, -1 - x.low);
}

template <bool bitwise>
Facts both(Query query) {
  Facts a = query.facts(0), b = query.facts(1);
  if (bitwise && query.dtype() != at::kBool) {
    if (a.low >= 0 && b.low >= 0)
      return between(query, 0, std::min(a.high, b.high));
    return a.low >= 0 ? between(query, 0, a.high) : b.low >= 0 ? between(query, 0, b.high) : unknown(query);
  }
  return cast(smallest_of(truth(a), truth(b), at::kBool), query.dtype());
}

template <bool bitwise>
Facts either_one(Query query) {
  Facts a = query.facts(0), b = query.facts(1);
  if (bitwise && query.dtype() != at::kBool) {
    if (a.is_zero() || b.is_zero())
      return cast(a.is_zero() ? b : a, query.dtype());
    return a.low >= 0 && b.low >= 0 ? between(query, 0, kLargest) : unknown(query);
  }
  return cast(largest_of(truth(a), truth(b), at::kBool), query.dtype());
}

// ---- reductions ----

Facts summed(Query query) {
  Facts x = query.facts(0);
  bool is_whole = c10::isIntegralType(x.dtype, true) && c10::isIntegralType(query.dtype(), true);
  double count = static_cast<double>(query.reduced());
  if (!is_whole) { // sums of floating-point numbers are rounded on the way: the sign is kept
    if (!x.is_finite())
      return anything(query);
    return between(query, x.low >= 0 ? 0 : -kLargest, x.high <= 0 ? 0 : kLargest);
  }
  Facts facts = between(query, x.low * count, x.high * count);
  if (x.total && query.numel() == 1)
    return Facts::exactly(*x.total, query.dtype(), 1);
  if (x.total && x.low >= 0)
    facts.high = std::min(facts.high, *x.total);
  facts.total = x.total;
  return facts;
}

Facts summed_on(Query query) { // cumsum: of one element and up to all of them
  Facts x = query.facts(0);
  if (!x.is_finite())
    return anything(query);
  bool is_whole = c10::isIntegralType(query.dtype(), true);
  double count = is_whole ? static_cast<double>(query.tensor(0).numel()) : kLargest;
  auto bound = [&](double value) { return value == 0 ? 0 : is_whole ? value * count : std::copysign(kLargest, value); };
  return between(query, std::min(bound(x.low), x.low), std::max(bound(x.high), x.high));
}

Facts averaged(Query query) {
  Facts x = query.facts(0);
  if (!x.is_finite())
    return anything(query);
  // (rounded on the way)
  auto wider = [](double bound, int side) { return std::abs(bound) >= kLargest ? bound : bound + side * 0.01 * std::abs(bound); };
  return between(query, wider(x.low, -1), wider(x.high, 1));
}

Facts extreme(Query query) { // max, min, sort, topk: an element, and where it was
  if (query.position == 1)
    return between(query, 0, static_cast<double>(query.options() - 1));
  // max(a, b)
  bool has_other = query.schema.arguments().size() > 1 && query.schema.arguments()[1].name() == "other";
  if (has_other)
    return is(query, "aten::max") ? larger(query) : smaller(query);
  return chosen(query);
}

Facts position(Query query) {
  return between(query, 0, static_cast<double>(query.options() - 1));
}

Facts place_among(Query query) { // searchsorted, bucketize
  const at::Tensor& sorted = query.tensor(is(query, "aten::bucketize") ? 1 : 0);
  return between(query, 0, static_cast<double>(sorted.dim() == 0 ? 1 : sorted.size(-1)));
}

Facts sampled(Query query) { // multinomial
  return between(query, 0, static_cast<double>(query.tensor(0).size(-1) - 1));
}

Facts any_true(Query query) {
  return cast(truth(query.facts(0)), query.dtype());
}

Facts num_true(Query query) {
  Facts x = truth(query.facts(0));
  double count = static_cast<double>(query.reduced());
  return between(query, x.low * count, x.high * count);
}

Facts counts(Query query) { // bincount, histc
  bool has_weights = query.named("weights") != nullptr;
  Facts facts = has_weights ? unknown(query) : between(query, 0, static_cast<double>(query.tensor(0).numel()));
  if (is(query, "aten::bincount") && !has_weights)
    facts.total = static_cast<double>(query.tensor(0).numel());
  return facts;
}

template <size_t source>
Facts added_to(Query query) { // scatter_add, index_add: every element of the source is added somewhere
  Facts self = query.facts(0), added = query.facts(source);
  const c10::IValue* alpha = query.named("alpha");
  if (!self.is_finite() || !added.is_finite())
    return anything(query);
  if (alpha != nullptr && alpha->toScalar().toDouble() != 1)
    return unknown(query);
  bool is_whole = c10::isIntegralType(query.dtype(), true);
  Facts facts = between(
      query, self.low >= 0 && added.low >= 0 ? 0 : Facts::presumed(query.dtype()).low, Facts::presumed(query.dtype()).high);
  bool all_added = query.tensor(2).numel() == query.tensor(source).numel() || is(query, "aten::index_add");
  if (is_whole && self.total && added.total && all_added)
    facts.total = *self.total + *added.total;
  return facts;
}

Facts found_none(Query query) { // whether a factorisation failed
  return c10::isIntegralType(query.dtype(), false) ? Facts::exactly(0, query.dtype()) : unknown(query);
}

const FactRule kNoRule;

using Table = std::unordered_map<std::string, FactRule>;

void add_all(Table& table, std::initializer_list<const char*> names, FactRule rule) {
  for (const char* name : names)
    table.emplace(std::string("aten::") + name, rule);
}

Table make_table() {
  Table table;
  // of the arguments' facts
  add_all(table, {"clone", "_to_copy", "contiguous", "alias_copy", "view_copy", "transpose_copy", "permute_copy", "flip",
                  "roll", "lift_fresh_copy"}, {copied});
  add_all(table, {"index", "_unsafe_index", "index_select", "gather", "take", "embedding", "masked_select", "repeat",
                  "expand_copy", "unfold_copy", "slice_copy", "select_copy"}, {chosen});
  add_all(table, {"cat", "stack", "_chunk_cat"}, {joined});
  add_all(table, {"triu", "tril", "slice_backward", "select_backward"}, {with_zero});
  add_all(table, {"index_put", "_index_put_impl", "masked_scatter"}, {with_argument<2>});
  add_all(table, {"scatter", "index_fill", "index_copy"}, {with_argument<3>});
  add_all(table, {"slice_scatter", "select_scatter"}, {with_argument<1>});
  add_all(table, {"add"}, {added<1>});
  add_all(table, {"sub"}, {added<-1>});
  add_all(table, {"mul"}, {multiplied});
  add_all(table, {"div", "floor_divide"}, {divided});
  add_all(table, {"neg"}, {negated});
  add_all(table, {"maximum", "fmax"}, {larger});
  add_all(table, {"minimum", "fmin"}, {smaller});
  add_all(table, {"floor"}, {monotonic<std::floor>});
  add_all(table, {"ceil"}, {monotonic<std::ceil>});
  add_all(table, {"trunc"}, {monotonic<std::trunc>});
  add_all(table, {"round"}, {monotonic<std::nearbyint>});
  add_all(table, {"logical_not"}, {not_true});
  add_all(table, {"bitwise_not"}, {inverted});
  add_all(table, {"logical_and"}, {both<false>});
  add_all(table, {"bitwise_and"}, {both<true>});
  add_all(table, {"logical_or"}, {either_one<false>});
  add_all(table, {"bitwise_or"}, {either_one<true>});
  add_all(table, {"sum"}, {summed});
  add_all(table, {"cumsum"}, {summed_on});
  add_all(table, {"mean"}, {averaged});
  add_all(table, {"amax", "amin"}, {chosen});
  add_all(table, {"any"}, {any_true});
  add_all(table, {"all"}, {any_true, false, true});
  add_all(table, {"scatter_add", "index_add"}, {added_to<3>});
  // of the operator alone
  auto out_of_nothing = [&](std::initializer_list<const char*> names, FactRule rule) {
    rule.from_nothing = true;
    add_all(table, names, rule);
  };
  out_of_nothing({"fill", "full", "full_like", "new_full"}, {filled});
  out_of_nothing({"zero", "zeros", "zeros_like", "new_zeros"}, {zeroed});
  out_of_nothing({"masked_fill"}, {with_argument<2>});
  out_of_nothing({"constant_pad_nd"}, {padded});
  out_of_nothing({"where"}, {selected});
  out_of_nothing({"arange"}, {counted_up});
  out_of_nothing({"uniform"}, {drawn_between});
  out_of_nothing({"random"}, {drawn_whole});
  out_of_nothing({"randperm"}, {permuted});
  out_of_nothing({"bernoulli", "rand", "sigmoid", "_softmax", "hardsigmoid"}, {of_range<0, 1>});
  out_of_nothing({"tanh", "sin", "cos", "erf", "sign"}, {of_range<-1, 1>});
  out_of_nothing({"abs"}, {magnitude});
  out_of_nothing({"relu"}, {rectified});
  out_of_nothing({"pow"}, {squared});
  out_of_nothing({"sqrt", "rsqrt", "exp", "softplus", "norm", "linalg_vector_norm", "var", "std"}, {never_negative});
  out_of_nothing({"clamp", "clamp_min", "clamp_max"}, {limited});
  out_of_nothing({"remainder"}, {left_over});
  out_of_nothing({"isnan", "isinf", "isposinf", "isneginf"}, {if_finite<false>});
  out_of_nothing({"isfinite"}, {if_finite<true>});
  out_of_nothing({"eq"}, {equal_or_not<true>, true, true});
  out_of_nothing({"ne"}, {equal_or_not<false>});
  out_of_nothing({"lt"}, {less_than<false, false>});
  out_of_nothing({"le"}, {less_than<true, false>, true, true});
  out_of_nothing({"gt"}, {less_than<false, true>});
  out_of_nothing({"ge"}, {less_than<true, true>, true, true});
  out_of_nothing({"max", "min", "topk", "sort", "median", "mode", "kthvalue"}, {extreme});
  out_of_nothing({"argmax", "argmin", "argsort"}, {position});
  out_of_nothing({"multinomial"}, {sampled});
  out_of_nothing({"searchsorted", "bucketize"}, {place_among});
  out_of_nothing({"count_nonzero"}, {num_true});
  out_of_nothing({"bincount", "histc"}, {counts});
  return table;
}

} // namespace

const FactRule& fact_rule(const std::string& base) {
  static const auto* table = new Table(make_table());
  static const FactRule linalg{found_none, true};
  if (base.find("::linalg_") != std::string::npos || base.find("::_linalg_") != std::string::npos) {
    auto found = table->find(base);
    return found == table->end() ? linalg : found->second;
  }
  bool is_in_place = base.size() > 2 && base.back() == '_' && base[base.size() - 2] != '_';
  auto found = table->find(is_in_place ? base.substr(0, base.size() - 1) : base);
  return found == table->end() ? kNoRule : found->second;
}

} // namespace sandtable
