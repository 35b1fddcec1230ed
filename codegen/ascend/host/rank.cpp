// Runs a stage: reads its action table, keeps one compute stream and one stream
// per directed link, and walks the table step by step.
//
//   stageN BUNDLE -meet DIR -data DIR [-device D] [-program P] [-steps N] [-weights DIR] [-save DIR] [-log FILE]
//
// DIR of -meet is an empty folder that all ranks see. Data and weights are raw
// little-endian files, <program>.<input>.bin with all rows and <parameter>.bin.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "rank.h"

namespace ppc {

namespace {

constexpr int kDeadlineSeconds = 30;
constexpr int kStepTimeoutMs = 600000;

[[noreturn]] void Fail(const std::string& what) {
    std::cerr << "rank " << ThisStage().index << ": " << what << std::endl;
    std::exit(1);
}

void Check(int status, const std::string& call) {
    if (status == 0) return;
    const char* detail = aclGetRecentErrMsg();
    Fail(call + " failed with status " + std::to_string(status) + (detail ? std::string(": ") + detail : ""));
}

struct Options {
    std::string bundle, meet, data, weights, save, log;
    int device = 0;
    int program = 0;
    int64_t steps = -1;
};

Options Parse(int argc, char** argv) {
    if (argc < 2) Fail("usage: stageN BUNDLE -meet DIR -data DIR [-device D] [-program P] [-steps N] [-weights DIR] [-save DIR] [-log FILE]");
    Options options;
    options.bundle = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 >= argc) Fail(name + " wants a value");
        const std::string value = argv[i + 1];
        if (name == "-meet") options.meet = value;
        else if (name == "-data") options.data = value;
        else if (name == "-weights") options.weights = value;
        else if (name == "-save") options.save = value;
        else if (name == "-log") options.log = value;
        else if (name == "-device") options.device = std::atoi(value.c_str());
        else if (name == "-program") options.program = std::atoi(value.c_str());
        else if (name == "-steps") options.steps = std::atoll(value.c_str());
        else Fail("unknown option " + name);
    }
    if (options.data.empty()) Fail("-data is missing");
    if (options.meet.empty() && ThisStage().count > 1) Fail("-meet is missing");
    return options;
}

enum class Kind { kForward, kInputGrad, kWeightGrad, kSend, kReceive, kUpdate };

struct Action {
    Kind kind;
    int chunk, micro, message;
};

// ReadActions reads the rows of one program: program,op,chunk,micro,peer,message.
std::vector<Action> ReadActions(const std::string& path, int program) {
    static const std::map<std::string, Kind> kinds = {
        {"F", Kind::kForward},      {"I", Kind::kInputGrad},  {"W", Kind::kWeightGrad}, {"SEND_F", Kind::kSend},
        {"RECV_F", Kind::kReceive}, {"SEND_B", Kind::kSend},  {"RECV_B", Kind::kReceive}, {"UPDATE", Kind::kUpdate},
    };
    std::ifstream file(path);
    if (!file) Fail("cannot read " + path);
    std::string line;
    std::getline(file, line);
    if (line != "program,op,chunk,micro,peer,message") Fail(path + " is not an action table");
    const Program& p = ThisStage().programs.at(program);
    std::vector<Action> actions;
    while (std::getline(file, line)) {
        std::vector<std::string> cells;
        std::stringstream row(line);
        for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
        if (cells.size() != 6) Fail(path + ": a row of " + std::to_string(cells.size()) + " cells");
        if (std::atoi(cells[0].c_str()) != program) continue;
        const auto kind = kinds.find(cells[1]);
        if (kind == kinds.end()) Fail(path + ": unknown action " + cells[1]);
        const Action a{kind->second, std::atoi(cells[2].c_str()), std::atoi(cells[3].c_str()), std::atoi(cells[5].c_str())};
        const bool transfers = a.kind == Kind::kSend || a.kind == Kind::kReceive;
        if (a.micro < 0 && a.kind != Kind::kUpdate) Fail(path + ": a negative micro-batch");
        if (a.micro >= p.microBatches) Fail(path + ": a micro-batch beyond the program's");
        if (transfers && (a.message < 0 || a.message >= int(p.messages.size()))) Fail(path + ": an unknown message");
        if (!transfers && a.kind != Kind::kUpdate && (a.chunk < 0 || a.chunk >= int(p.chunks.size()))) Fail(path + ": an unknown chunk");
        actions.push_back(a);
    }
    return actions;
}

class Rank {
public:
    explicit Rank(const Options& options)
        : options_(options), stage_(ThisStage()), program_(stage_.programs.at(options.program)),
          actions_(ReadActions(options.bundle + "/stage" + std::to_string(stage_.index) + "/actions.csv", options.program)) {
        Check(aclInit(nullptr), "aclInit");
        Check(aclrtSetDevice(options.device), "aclrtSetDevice");
        Check(aclrtCreateStream(&context_.stream), "aclrtCreateStream");
        context_.log = options.log;
        for (const Area& area : stage_.areas) context_.base.push_back(Allocate(area.slots * area.slotBytes));
        scratch_ = Allocate(stage_.scratchBytes);
        Load();
        Connect();
    }

    ~Rank() {
        for (const auto& entry : links_) {
            HcclCommDestroy(entry.second.communicator);
            aclrtDestroyStream(entry.second.stream);
        }
        for (uint8_t* memory : allocated_) aclrtFree(memory);
        aclrtDestroyStream(context_.stream);
        aclrtResetDevice(options_.device);
        aclFinalize();
    }

    void Run() {
        for (int64_t step = 0; options_.steps < 0 || step < options_.steps; step++) {
            if (!LoadInputs(step)) break;
            for (const Action& action : actions_) Do(action);
            Synchronise(context_.stream);
            for (const auto& entry : links_) Synchronise(entry.second.stream);
            Report(step);
        }
        if (!options_.save.empty()) Save();
    }

private:
    // Link is one direction between this stage and another: transfers on it keep the order of the table.
    struct Link {
        HcclComm communicator = nullptr;
        aclrtStream stream = nullptr;
    };

    uint8_t* Allocate(int64_t bytes) {
        if (bytes == 0) return nullptr;
        void* memory = nullptr;
        Check(aclrtMalloc(&memory, size_t(bytes), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc of " + std::to_string(bytes) + " bytes");
        allocated_.push_back(static_cast<uint8_t*>(memory));
        return allocated_.back();
    }

    uint8_t* Address(const Place& place, int micro) const {
        const Area& area = stage_.areas[place.area];
        return context_.base[place.area] + micro % area.slots * area.slotBytes + place.offset;
    }

    void ToDevice(uint8_t* to, const void* from, int64_t bytes) const {
        Check(aclrtMemcpy(to, size_t(bytes), from, size_t(bytes), ACL_MEMCPY_HOST_TO_DEVICE), "aclrtMemcpy to the device");
    }

    void Load() {
        for (const Parameter& parameter : stage_.parameters) {
            if (options_.weights.empty()) Fail("-weights is missing: the first values of " + parameter.name);
            const std::string path = options_.weights + "/" + parameter.name + ".bin";
            std::vector<char> data(size_t(parameter.value.bytes));
            std::ifstream file(path, std::ios::binary);
            if (!file.read(data.data(), parameter.value.bytes)) Fail(path + " does not have " + std::to_string(parameter.value.bytes) + " bytes");
            ToDevice(Address(parameter.value, 0), data.data(), parameter.value.bytes);
            for (size_t i = 0; i < parameter.states.size(); i++) {
                const std::vector<float> state(size_t(parameter.states[i].bytes) / 4, parameter.stateInit[i]);
                ToDevice(Address(parameter.states[i], 0), state.data(), parameter.states[i].bytes);
            }
        }
        if (stage_.seed.area >= 0) ToDevice(Address(stage_.seed, 0), &stage_.seedValue, 4);
    }

    // Connect makes the links in the order of (from, to), the same on all ranks, because
    // making one waits for the other end.
    void Connect() {
        std::map<std::pair<int, int>, bool> wanted;
        for (const Program& program : stage_.programs) {
            for (const Message& message : program.messages) {
                if (!message.tensors.empty()) wanted[{message.from, message.to}] = true;
            }
        }
        for (const auto& entry : wanted) {
            const bool sends = entry.first.first == stage_.index;
            const std::string path = options_.meet + "/link_" + std::to_string(entry.first.first) + "_" + std::to_string(entry.first.second);
            HcclRootInfo info;
            if (sends) {
                Check(HcclGetRootInfo(&info), "HcclGetRootInfo");
                std::ofstream(path + ".part", std::ios::binary).write(reinterpret_cast<const char*>(&info), sizeof info);
                if (std::rename((path + ".part").c_str(), path.c_str()) != 0) Fail("cannot write " + path);
            } else {
                for (int tries = 0; !std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&info), sizeof info); tries++) {
                    if (tries > kDeadlineSeconds * 10) Fail("rank " + std::to_string(entry.first.first) + " did not come: " + path);
                    std::this_thread::sleep_for(std::chrono::milliseconds(100));
                }
            }
            Link link;
            Check(HcclCommInitRootInfo(2, &info, sends ? 0 : 1, &link.communicator), "HcclCommInitRootInfo");
            Check(aclrtCreateStream(&link.stream), "aclrtCreateStream");
            links_[entry.first] = link;
        }
    }

    // LoadInputs reads the rows of a step that do not wait for their pass; false at the end of the data.
    bool LoadInputs(int64_t step) {
        step_ = step;
        loaded_.assign(program_.inputs.size(), 0);
        for (const Input& input : program_.inputs) {
            if (input.place.area < 0) continue;
            if (input.loaded) {
                if (!Read(input, program_.microBatches - 1, nullptr)) return false;
                continue;
            }
            for (int micro = 0; micro < program_.microBatches; micro++) {
                if (!Read(input, micro, Address(input.place, micro))) return false;
            }
        }
        return true;
    }

    // Read copies the rows of a micro-batch of this step to the device, or only finds out whether there are any.
    bool Read(const Input& input, int micro, uint8_t* to) const {
        const std::string path = options_.data + "/" + program_.name + "." + input.name + ".bin";
        std::ifstream file(path, std::ios::binary);
        if (!file) Fail("cannot read " + path);
        file.seekg((step_ * program_.microBatches + micro) * input.place.bytes);
        std::vector<char> data(size_t(input.place.bytes));
        if (!file.read(data.data(), input.place.bytes)) return false;
        if (to) ToDevice(to, data.data(), input.place.bytes);
        return true;
    }

    // LoadFor reads the inputs that a pass is the first to need. Passes before it may still read what was in their place.
    void LoadFor(const Phase& phase, int micro) {
        for (size_t i = 0; i < program_.inputs.size(); i++) {
            const Input& input = program_.inputs[i];
            bool reads = false;
            for (const Place& place : phase.arguments) reads = reads || place.area == input.place.area;
            if (!input.loaded || !reads || micro < loaded_[i]) continue;
            if (micro >= stage_.areas[input.place.area].slots) Synchronise(context_.stream);
            if (!Read(input, micro, Address(input.place, micro))) Fail("the rows of a step end within it");
            loaded_[i] = micro + 1;
        }
    }

    void Do(const Action& action) {
        switch (action.kind) {
        case Kind::kForward: Compute(action, 0); break;
        case Kind::kInputGrad: Compute(action, 1); break;
        case Kind::kWeightGrad: Compute(action, 2); break;
        case Kind::kSend: Transfer(action, true); break;
        case Kind::kReceive: Transfer(action, false); break;
        case Kind::kUpdate: stage_.update(context_); break;
        }
    }

    void Compute(const Action& action, int pass) {
        const Phase& phase = program_.chunks[action.chunk].phases[pass];
        for (aclrtEvent event : arrivals_) Check(aclrtStreamWaitEvent(context_.stream, event), "aclrtStreamWaitEvent");
        arrivals_.clear();
        for (size_t i = 0; i < program_.messages.size(); i++) {
            const Message& message = program_.messages[i];
            if (message.from != stage_.index || message.fromChunk != action.chunk || message.backward != (pass == 1)) continue;
            const auto sent = transferred_.find({int(i), action.micro - message.window});
            if (pass < 2 && sent != transferred_.end()) Check(aclrtStreamWaitEvent(context_.stream, sent->second), "aclrtStreamWaitEvent");
        }
        LoadFor(phase, action.micro);
        if (phase.function) {
            std::vector<uint8_t*> arguments, results;
            for (const Place& place : phase.arguments) arguments.push_back(Address(place, action.micro));
            for (const Place& place : phase.results) results.push_back(Address(place, action.micro));
            context_.assign = action.micro == 0;
            phase.function(context_, scratch_, arguments.data(), results.data());
        }
    }

    // Transfer waits for the compute queue so far: what is sent is made there, and
    // what a received message overwrites was read there.
    void Transfer(const Action& action, bool sends) {
        const Message& message = program_.messages[action.message];
        const Link& link = links_.at({message.from, message.to});
        aclrtEvent ready = nullptr;
        Check(aclrtCreateEvent(&ready), "aclrtCreateEvent");
        Check(aclrtRecordEvent(ready, context_.stream), "aclrtRecordEvent");
        Check(aclrtStreamWaitEvent(link.stream, ready), "aclrtStreamWaitEvent");
        events_.push_back(ready);
        for (const Tensor& tensor : message.tensors) {
            uint8_t* address = Address(tensor.place, action.micro);
            if (sends) Check(HcclSend(address, tensor.count, tensor.type, 1, link.communicator, link.stream), "HcclSend");
            else Check(HcclRecv(address, tensor.count, tensor.type, 0, link.communicator, link.stream), "HcclRecv");
        }
        aclrtEvent done = nullptr;
        Check(aclrtCreateEvent(&done), "aclrtCreateEvent");
        Check(aclrtRecordEvent(done, link.stream), "aclrtRecordEvent");
        events_.push_back(done);
        if (sends) transferred_[{action.message, action.micro}] = done;
        else arrivals_.push_back(done);
    }

    void Synchronise(aclrtStream stream) { Check(aclrtSynchronizeStreamWithTimeout(stream, kStepTimeoutMs), "a step"); }

    // Report prints the outputs, summed over micro-batches, and forgets the step's events.
    void Report(int64_t step) {
        for (aclrtEvent event : events_) aclrtDestroyEvent(event);
        events_.clear();
        transferred_.clear();
        arrivals_.clear();
        for (const Output& output : program_.outputs) {
            double sum = 0;
            for (int micro = 0; micro < program_.microBatches; micro++) {
                float value = 0;
                Check(aclrtMemcpy(&value, 4, Address(output.place, micro), 4, ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy from the device");
                sum += value;
            }
            std::printf("step: %lld, %s is %.6f\n", static_cast<long long>(step), output.name.c_str(), sum);
        }
        std::fflush(stdout);
    }

    void Save() {
        for (const Parameter& parameter : stage_.parameters) {
            std::vector<char> data(size_t(parameter.value.bytes));
            Check(aclrtMemcpy(data.data(), data.size(), Address(parameter.value, 0), data.size(), ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy from the device");
            const std::string path = options_.save + "/" + parameter.name + ".bin";
            if (!std::ofstream(path, std::ios::binary).write(data.data(), parameter.value.bytes)) Fail("cannot write " + path);
        }
    }

    const Options options_;
    const Stage& stage_;
    const Program& program_;
    const std::vector<Action> actions_;
    Context context_;
    uint8_t* scratch_ = nullptr;
    std::vector<uint8_t*> allocated_;
    std::map<std::pair<int, int>, Link> links_;
    std::map<std::pair<int, int>, aclrtEvent> transferred_;   // sends of this step, by message and micro-batch
    std::vector<aclrtEvent> arrivals_;                        // receives that no compute action has waited for
    std::vector<aclrtEvent> events_;
    int64_t step_ = 0;
    std::vector<int> loaded_;                                 // micro-batches of this step, by input
};

}  // namespace

void Context::Launched(const char* kernel, uint32_t status) const { Check(int(status), std::string("kernel ") + kernel); }

void Context::Print(const char* label, const uint8_t* data, const std::vector<int64_t>& shape, bool integers) const {
    Check(aclrtSynchronizeStreamWithTimeout(stream, kStepTimeoutMs), "a print");
    int64_t count = 1;
    for (int64_t length : shape) count *= length;
    const int64_t shown = count < 8 ? count : 8;
    std::vector<char> values(size_t(4 * shown));
    Check(aclrtMemcpy(values.data(), values.size(), data, values.size(), ACL_MEMCPY_DEVICE_TO_HOST), "aclrtMemcpy from the device");
    std::ofstream file(log.empty() ? "worker_" + std::to_string(ThisStage().index) + ".log" : log, std::ios::app);
    file << label << "\nTensor(shape=[";
    for (size_t i = 0; i < shape.size(); i++) file << (i ? ", " : "") << shape[i];
    file << "], value=[";
    for (int64_t i = 0; i < shown; i++) {
        float real;
        int32_t whole;
        std::memcpy(&real, values.data() + 4 * i, 4);
        std::memcpy(&whole, values.data() + 4 * i, 4);
        file << (i ? ", " : "");
        if (integers) file << whole;
        else file << real;
    }
    file << (shown < count ? ", ...])" : "])") << "\n";
}

}  // namespace ppc

int main(int argc, char** argv) {
    ppc::Rank rank(ppc::Parse(argc, argv));
    rank.Run();
    return 0;
}
