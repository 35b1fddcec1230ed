#include "launch.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "core.h"

namespace AscendC::emulator {

namespace {

FaultReport RaceAmong(const std::vector<Core*>& cores) {
    std::vector<Span> spans;
    for (Core* core : cores) {
        spans.insert(spans.end(), core->spans.begin(), core->spans.end());
        core->spans.clear();
    }
    return FindRace(std::move(spans));
}

void RunBlock(Core& core) {
    Launch& launch = *core.launch;
    SetCurrent(&core);
    try {
        launch.kernel->entry(launch.arguments.data());
        core.Finish();
    } catch (const KernelFault&) {
    } catch (const std::exception& error) {
        core.fault = FaultReport{true, core.block, core.call, error.what()};
    }
    const std::lock_guard<std::mutex> lock(launch.mutex);
    launch.ended++;
    launch.failed = launch.failed || core.fault.set;
    launch.changed.notify_all();
}

}  // namespace

void SynchroniseBlocks() {
    Enter("SyncAll");
    Barrier(PIPE_ALL);
    Enter("SyncAll");
    Core& core = *CurrentCore();
    Launch& launch = *core.launch;
    const int64_t cores = core.type == KERNEL_TYPE_AIC_ONLY ? kCubeCores : kVectorCores;
    if (launch.blocks > cores) Fault("%lld blocks cannot all be resident on %lld cores", (long long)launch.blocks, (long long)cores);
    core.written.clear();
    std::unique_lock<std::mutex> lock(launch.mutex);
    const uint64_t epoch = launch.epoch;
    if (++launch.arrived == launch.blocks) {
        const FaultReport race = RaceAmong(launch.cores);
        if (race.set) {
            launch.failed = true;
            launch.cores[size_t(race.block)]->fault = race;
            launch.changed.notify_all();
            throw KernelFault{};
        }
        launch.arrived = 0;
        launch.epoch++;
        launch.changed.notify_all();
        return;
    }
    launch.changed.wait(lock, [&] { return launch.epoch != epoch || launch.failed || launch.arrived + launch.ended == launch.blocks; });
    if (launch.epoch != epoch) return;
    if (launch.failed) throw KernelFault{};
    const int64_t ended = launch.ended;
    lock.unlock();
    Fault("%lld of %lld blocks ended without reaching it", (long long)ended, (long long)launch.blocks);
}

FaultReport FindRace(std::vector<Span> spans) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.block < b.block;
    });
    std::vector<const Span*> open;
    for (const Span& span : spans) {
        open.erase(std::remove_if(open.begin(), open.end(), [&](const Span* other) { return other->end <= span.begin; }), open.end());
        for (const Span* other : open) {
            if (other->block == span.block || !(other->write || span.write) || (other->atomic && span.atomic)) continue;
            const Span& writer = other->write ? *other : span;
            const Span& second = other->write ? span : *other;
            char text[256];
            std::snprintf(text, sizeof text, "it writes global memory that block %lld %s in %s, with no SyncAll between them",
                          (long long)second.block, second.write ? "writes" : "reads", second.call);
            return FaultReport{true, writer.block, writer.call, text};
        }
        open.push_back(&span);
    }
    return FaultReport{};
}

Server::Server() = default;
Server::~Server() = default;

FaultReport Server::Run(const Kernel& kernel, int64_t blocks, std::vector<uint64_t> arguments, std::vector<Extent> extents) {
    Launch launch;
    launch.kernel = &kernel;
    launch.blocks = blocks;
    launch.arguments = std::move(arguments);
    launch.extents = std::move(extents);
    while (int64_t(cores_.size()) < blocks) cores_.push_back(std::make_unique<Core>());
    for (int64_t block = 0; block < blocks; block++) {
        cores_[size_t(block)]->Reset(&launch, block);
        launch.cores.push_back(cores_[size_t(block)].get());
    }
    if (blocks == 1) {
        RunBlock(*launch.cores[0]);
    } else {
        std::vector<std::thread> threads;
        for (Core* core : launch.cores) threads.emplace_back([core] { RunBlock(*core); });
        for (std::thread& thread : threads) thread.join();
    }
    // The lowest faulting block speaks, so that a fault reads the same in every run.
    for (const Core* core : launch.cores) {
        if (core->fault.set) return core->fault;
    }
    return RaceAmong(launch.cores);
}

}  // namespace AscendC::emulator
