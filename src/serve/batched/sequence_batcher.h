// Keeps the requests of a sequence in order, and gives each what the model wants to know of its sequence.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/threads/bounded_queue.h"
#include "base/report/env.h"
#include "base/guarded.h"
#include "ir/graph.h"
#include "sched/request.h"
#include "serve/infer/infer_request.h"
#include "serve/config/model_config.h"
#include "serve/batched/sequence_slots.h"
#include "serve/batched/string_ports.h"

namespace trireme::serve {

/// Where the inputs and outputs that clients see stand among those of the graph, and what fills the others.
class SequenceLayout {
 public:
  /// `config` is complete. `root` is the model's directory. Throws for a control or state that does not fit.
  SequenceLayout(const ModelConfig& config, const ir::Graph& graph, const StringPorts& strings,
                 const std::string& root);

  struct Step {
    bool is_start = false, is_ready = true, is_end = false;
    uint64_t number = 0;
  };
  /// The graph's inputs, in its order, from the client's.
  std::vector<tensor::Tensor> assemble(std::vector<tensor::Tensor> client, const Step& step,
                                       const std::vector<tensor::Tensor>& states) const;
  const std::vector<tensor::Tensor>& initial_states() const { return initial_; }
  /// Gives the states among a run's outputs and takes out what clients do not see.
  std::vector<tensor::Tensor> take_states(std::vector<tensor::Tensor>& outputs) const;
  /// What the model is told as its sequence's ID; the number of the wish where it is not told.
  /// Throws invalid_argument for a text where it wants a number, one that is no number, or a number that the
  /// input's type does not hold.
  uint64_t number_of(const SequenceWish& wish, const std::string& model) const;

 private:
  struct Input {
    enum class From { client, control, state } from = From::client;
    size_t index = 0;  ///< among the client's inputs, the controls or the states
    tensor::DType type = tensor::DType::f32;
    tensor::Dims dims;  ///< of a control, for one row
  };
  tensor::Tensor control(const Input& input, const Step& step) const;

  SequenceConfig config_;
  std::vector<Input> inputs_;
  std::vector<size_t> state_outputs_;   ///< by state
  std::vector<bool> is_hidden_output_;  ///< by output of the graph
  std::vector<tensor::Tensor> initial_;
  std::vector<tensor::DType> id_types_;  ///< of the inputs that are the ID
  bool has_number_ = false;              ///< an input of the model is the ID, as a number
  bool has_text_ = false;                ///< likewise, as a number that a string spells
};

/// Sequences belong to the tenant that began them: another one's of the same ID is another sequence.
/// One request of a sequence runs at a time; sequences share batches. As many sequences as there are slots
/// are served, others wait whole. Where those of a tenant with less than its share of the slots wait for
/// longer than a second, or than a sequence may be idle, the last begun of the tenant with most ends. Any
/// thread.
class SequenceBatcher {
 public:
  struct Options {
    size_t slots = 1;
    size_t max_waiting = 1024;  ///< requests that wait here; further ones are refused
    int64_t idle_ns = 0;        ///< a sequence without requests for so long loses its slot
    std::string model;
    /// `direct`: a sequence keeps to one instance and one row of its batches. 0: it does not.
    size_t instances = 0;
    bool has_rows = true;  ///< the model batches
  };
  using Submit = std::function<void(sched::Request)>;

  SequenceBatcher(std::shared_ptr<const SequenceLayout> layout, Options options, const base::Env& env,
                  Submit submit);
  ~SequenceBatcher();
  SequenceBatcher(const SequenceBatcher&) = delete;
  SequenceBatcher& operator=(const SequenceBatcher&) = delete;

  /// The turn of one request in its sequence. Its owner keeps it where it is until the request's sink is
  /// told, and calls end() then.
  struct Turn {
    std::string key;  ///< of the sequence
    bool is_start = false, is_end = false;
    bool has_begun = false;  ///< it has left the queue here
  };
  /// Queues a request with the client's inputs. Throws invalid_argument where it does not say its sequence,
  /// or does not start one that is not there, unavailable where the sequence has lost its slot.
  void submit(sched::Request request, const SequenceWish& wish, Turn& turn);
  class Freed;
  /// To be called first of all with the outcome of a request: takes the states out of its outputs, or makes
  /// it an error where that fails. What waited for it is to be handed to go_on() once the client has its
  /// answer.
  Freed end(Turn& turn, sched::Outcome& outcome);
  void go_on(Freed freed);
  /// Ends the thread that looks for idle sequences; what it would hand requests to may go after this.
  void stop();
  /// Runs what sequences with slots have sent and refuses the rest.
  void drain();
  size_t waiting() const;
  /// True for a sequence that has started and not ended.
  bool knows(const SequenceWish& wish) const;
  /// True while there is any, with a slot or waiting for one.
  bool has_sequences() const;

 private:
  struct Item {
    sched::Request request;
    Turn* turn;                                       ///< lives with the request's sink
    std::optional<base::Error> error = std::nullopt;  ///< it could not be made ready to run
    const char* reason = nullptr;                     ///< of a request that is answered without having run
    sched::Ending ending = sched::Ending::refused;
  };
  // Once a request is taken, nothing on its way asks for memory but the making of its inputs, whose failure
  // is its answer: items, places in the queue and slots go from one container to another as they are.
  using Items = std::list<Item>;
  struct Sequence {
    Items items;
    std::vector<tensor::Tensor> states;
    uint64_t number = 0;
    std::optional<SequenceSlots::Claim> claim;  ///< none: it lost its slot, and its client may not know yet
    bool is_running = false, is_revoked = false;
    bool has_ended = false;  ///< its last request so far was an end
    int64_t last_ns = 0;
    bool has_slot() const { return claim && claim->has_slot(); }
  };
  using Sequences = std::map<std::string, Sequence>;
  struct Table {
    explicit Table(size_t slot_count) : slots(slot_count) {}
    Sequences sequences;
    SequenceSlots slots;
    size_t waiting = 0;
    bool is_closing = false;
  };
  Sequence& find_or_add(Table& table, const std::string& key, uint64_t number, const Item& item) const;
  bool is_dead(Table& table, Sequence& sequence, Items& refused) const;
  void share_slots(Table& table, Items& ready, Items& refused) const;
  void lose_slot(Table& table, Sequence& sequence, Items& ready) const;
  static void drop_items(Table& table, Sequence& sequence, const char* reason, Items& refused);
  static void refuse_first(Table& table, Sequence& sequence, const char* reason, sched::Ending ending,
                           Items& refused);
  static void refuse(const Item& item);
  static void refuse_all(const Items& items);
  void take_next(Table& table, Sequence& sequence, Items& ready) const;
  void end_sequence(Table& table, Sequences::iterator at, Items& ready) const;
  void give_slots(Table& table, Items& ready) const;
  void submit_all(Items ready);
  void sweep();
  void run_sweeps();

  const std::shared_ptr<const SequenceLayout> layout_;
  const Options options_;
  base::Env env_;
  const Submit submit_;
  base::Guarded<Table> table_{Table(options_.slots)};
  base::BoundedQueue<int> stop_{1};
  std::thread sweeper_;
};

/// Requests that the end of a turn lets go: to run, or to be refused.
class SequenceBatcher::Freed {
  friend class SequenceBatcher;
  Items ready, refused;
};

}  // namespace trireme::serve
