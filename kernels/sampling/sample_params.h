// Parameters of sampling, shared by the kernel and its binding. Launch: grid rows * ctas in clusters of `ctas`, each of which
// has one row, or several with a small k; kSampleThreads threads per CTA. CTA r of a cluster has tokens [r * slice, (r + 1) *
// slice). Pointers of operands that a descriptor does not have are null. Strides in elements.
#pragma once
#include <stdint.h>

namespace opfacade {

#ifndef OPF_SAMPLE_THREADS
#define OPF_SAMPLE_THREADS 512
#endif
constexpr int kSampleThreads = OPF_SAMPLE_THREADS, kMostCtas = 8;  // threads per CTA, CTAs per cluster
// Bytes of shared memory, without held logits.
constexpr int kStreamShared = 23552, kKeptShared = 19456, kHeldShared = 16384;
constexpr int kMostTopK = 2048;
// Candidates in the list of one CTA and of a row; with these, two CTAs fit an SM for rows of 151936 tokens.
constexpr int kOwnListed = 768, kListed = 2048;
constexpr int kFilterShared = kHeldShared + 8 * (kOwnListed + kListed);
// Maximum small k, and how many candidates a CTA may note and sort.
constexpr int kShortK = 128, kNoted = 2048, kSorted = 512;
// The CTAs of a team send their lists to the memory of held logits: words between lists, which puts them in different banks,
// and total bytes.
constexpr int kListStep = kShortK + 1, kListsShared = 8 * kListStep * kMostCtas;
constexpr int kMostSorted = 8192;  // for top-k, whose two lists have max_top_k entries each

struct AdjustParams {
  const int32_t* bitmask;       // [rows, ceil(vocab / 32)]
  const float* bias;            // [rows, vocab]
  const int32_t* bias_tokens;   // [rows, num_biases]
  const float* bias_values;     // [rows, num_biases]
  const uint8_t* prompt_mask;   // [rows, vocab]
  const int32_t* output_counts; // [rows, vocab]
  const float* repetition;      // [rows], like the next two
  const float* frequency;
  const float* presence;
  int64_t bitmask_row, bias_row, bias_tokens_row, bias_values_row, prompt_mask_row, output_counts_row;
  int32_t num_biases;
  float soft_cap;
};

struct SampleParams {
  const void* logits;      // [num_logits, vocab]
  const int32_t* indices;  // [rows]
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seed;
  const int64_t* offset;
  const int32_t* num_valid;  // [1]
  const int32_t* starts;     // [rows]: begin of a row's window, and its end
  const int32_t* ends;
  AdjustParams adjust;
  int32_t* token;
  uint8_t* valid;
  float* logprob;
  int32_t* rank;
  int32_t* top_tokens;  // [rows, top_n]
  float* top_logprobs;  // [rows, top_n]
  float* probs;         // [rows, vocab]
  void* values;         // [rows, top_n] for top-k, in the dtype of the logits
  int64_t values_row;
  int64_t logits_row, top_tokens_row, top_logprobs_row, probs_row;
  int64_t rows, num_logits;
  int32_t vocab, top_n, max_top_k, ctas;
  uint32_t whole;           // clusters in full rounds, for rows with a small k
  int32_t team, last_team;  // CTAs per row in full rounds, and in the last round
  uint32_t slice, held, stream;  // held: tokens of a slice that are kept in shared memory
};

}  // namespace opfacade
