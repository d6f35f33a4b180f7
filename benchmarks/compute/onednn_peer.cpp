// oneDNN's resampling backward behind five C functions, one primitive per handle.
//
// Everything that can be done once is done in onednn_new: a run is one execute and one wait.
#include <omp.h>

#include <cstdio>
#include <dnnl.hpp>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

namespace {

using dnnl::memory;

dnnl::engine& cpu() {
    static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    return engine;
}

struct Peer {
    std::string implementation;
    dnnl::stream stream;
    dnnl::resampling_backward primitive;
    std::unordered_map<int, memory> arguments;
};

memory::format_tag tag(int rank, bool channels_last) {
    using t = memory::format_tag;
    if (channels_last) return rank == 3 ? t::nwc : rank == 4 ? t::nhwc : t::ndhwc;
    return rank == 3 ? t::ncw : rank == 4 ? t::nchw : t::ncdhw;
}

}  // namespace

extern "C" {

void onednn_threads(int threads) { omp_set_num_threads(threads); }

// src and dst are sizes in the order N, C, X; type is a dnnl_data_type_t.
// Returns null and a message where oneDNN has no implementation.
void* onednn_new(int nearest, int type, int channels_last, int rank, const long* src, const long* dst,
                 void* diff_src, void* diff_dst, char* message, std::size_t length) try {
    const auto kind = static_cast<memory::data_type>(type);
    const auto algorithm =
        nearest ? dnnl::algorithm::resampling_nearest : dnnl::algorithm::resampling_linear;
    const auto layout = tag(rank, channels_last != 0);
    const memory::desc narrow(memory::dims(src, src + rank), kind, layout);
    const memory::desc wide(memory::dims(dst, dst + rank), kind, layout);
    const dnnl::resampling_forward::primitive_desc hint(
        cpu(), dnnl::prop_kind::forward_training, algorithm, narrow, wide);
    const dnnl::resampling_backward::primitive_desc chosen(cpu(), algorithm, narrow, wide, hint);
    auto peer = std::make_unique<Peer>();
    peer->implementation = chosen.impl_info_str();
    peer->stream = dnnl::stream(cpu());
    peer->primitive = dnnl::resampling_backward(chosen);
    peer->arguments = {{DNNL_ARG_DIFF_SRC, memory(narrow, cpu(), diff_src)},
                       {DNNL_ARG_DIFF_DST, memory(wide, cpu(), diff_dst)}};
    return peer.release();
} catch (const std::exception& error) {
    std::snprintf(message, length, "%s", error.what());
    return nullptr;
}

const char* onednn_implementation(void* handle) {
    return static_cast<Peer*>(handle)->implementation.c_str();
}

// Returns 0, or 1 where oneDNN failed.
int onednn_run(void* handle) try {
    auto* peer = static_cast<Peer*>(handle);
    peer->primitive.execute(peer->stream, peer->arguments);
    peer->stream.wait();
    return 0;
} catch (const std::exception&) {
    return 1;
}

void onednn_free(void* handle) { delete static_cast<Peer*>(handle); }
}
