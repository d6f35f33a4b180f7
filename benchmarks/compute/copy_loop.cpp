// A plain copy loop: the cost of moving the bytes of a case without computing anything.
//
// Reads `read` words and writes `written` words, interleaved in pieces. Each piece copies the shorter of
// both parts, then sums the words that are only read, or fills the words that are only written. Ordinary
// loads and stores of the compiler's widest vectors; no memcpy, no stores around the cache.
#include <cstddef>
#include <cstdint>

namespace {

constexpr std::size_t kPieceWords = 4096;

std::uint64_t piece(const std::uint64_t* __restrict__ x, std::size_t read,
                    std::uint64_t* __restrict__ y, std::size_t written) {
    const std::size_t both = read < written ? read : written;
    for (std::size_t i = 0; i < both; ++i) y[i] = x[i];
    std::uint64_t sum = 0;
    for (std::size_t i = both; i < read; ++i) sum += x[i];
    for (std::size_t i = both; i < written; ++i) y[i] = 0;
    return sum;
}

}  // namespace

extern "C" std::uint64_t copy_loop(const std::uint64_t* x, std::size_t read, std::uint64_t* y,
                                   std::size_t written, int threads) {
    const std::size_t longer = read < written ? written : read;
    const std::size_t pieces = (longer + kPieceWords - 1) / kPieceWords;
    std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum) if (threads > 1)
    for (std::size_t p = 0; p < pieces; ++p) {
        const std::size_t x0 = read * p / pieces, x1 = read * (p + 1) / pieces;
        const std::size_t y0 = written * p / pieces, y1 = written * (p + 1) / pieces;
        sum += piece(x + x0, x1 - x0, y + y0, y1 - y0);
    }
    return sum;
}
