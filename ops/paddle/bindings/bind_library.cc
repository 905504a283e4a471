// What Python's Predictor shares with the serving library: raw fields, and the inputs of a model.
#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "feed/text/parser.h"
#include "library/fields.h"
#include "library/model_inputs.h"
#include "library/users.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "serve/serve_table.h"

namespace pbx {
namespace {

Json Parsed(const std::string& text) { return ValueOrThrow(Json::Parse(text)); }

// Makes the lines of instances.
class FieldLines {
 public:
  // ignore: count fields that no slot reads, instead of raising a KeyError. plain: called with the
  // values of types that are no plain Python, and whether they are of a list of numbers; returns a
  // value of a plain type, or (text, whether it is split as a string). stamps: as for Batch::Lines.
  FieldLines(const Fields& fields, bool ignore, py::object plain, Stamps* stamps)
      : fields_(fields), ignore_(ignore), plain_(std::move(plain)), stamps_(stamps) {}

  void Add(const py::dict& instance) {
    cells_.assign(fields_.columns(), std::string());
    for (const auto& [name, value] : instance) {
      if (!value.is_none()) Set(name, value);
    }
    if (stamps_ != nullptr) ThrowIfError(stamps_->End());
    fields_.AppendLine(cells_, &text_);
    ++count_;
  }

  py::bytes text() const { return py::bytes(text_); }
  size_t count() const { return count_; }
  const std::map<std::string, int64_t>& unknown() const { return unknown_; }

 private:
  void Set(const py::handle& name, const py::handle& value) {
    const bool named = py::isinstance<py::str>(name);
    const int place = named ? fields_.Place(View(name)) : Fields::kUnknown;
    const bool stamp = named && stamps_ != nullptr && stamps_->Reads(View(name));
    if (place == Fields::kIgnored && !stamp) return;
    if (place == Fields::kUnknown && !stamp) {
      if (!ignore_) {
        PyErr_SetObject(PyExc_KeyError, name.ptr());
        throw py::error_already_set();
      }
      ++unknown_[py::str(name).cast<std::string>()];
      return;
    }
    at_ = place < 0 ? fields_.label() : static_cast<size_t>(place);
    given_.clear();
    held_.clear();
    const bool list = PyList_Check(value.ptr()) || PyTuple_Check(value.ptr());
    const bool one = !list && TakeValue(value, false);
    if (!one) TakeList(list ? py::reinterpret_borrow<py::object>(value) : held_.back());
    Status status;
    if (stamp) status = stamps_->Take(View(name), given_.data(), given_.size(), !one);
    if (status.ok() && place >= 0) {
      status = fields_.Cell(at_, given_.data(), given_.size(), !one, &cells_[at_]);
    }
    if (!status.ok()) {
      PyErr_SetString(PyExc_ValueError, ("field " + Repr(name) + ": " + status.message()).c_str());
      throw py::error_already_set();
    }
  }

  void TakeList(const py::object& values) {
    for (const py::handle value : py::reinterpret_borrow<py::sequence>(values)) {
      if (!TakeValue(value, true)) throw py::type_error("a list in a list");
    }
  }

  static std::string Repr(const py::handle& value) { return py::repr(value).cast<std::string>(); }

  static std::string_view View(const py::handle& text) {
    Py_ssize_t size = 0;
    const char* const data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw py::error_already_set();
    return {data, static_cast<size_t>(size)};
  }

  // The value of a plain type of Python; false for another type. held: owns its text.
 public:
  static bool IsPlain(const py::handle& value, std::vector<py::object>* held, FieldValue* one) {
    PyObject* const object = value.ptr();
    if (PyUnicode_CheckExact(object)) {
      one->kind = FieldValue::Kind::kText;
      one->text = View(value);
    } else if (PyBool_Check(object)) {
      one->kind = FieldValue::Kind::kBool;
      one->truth = object == Py_True;
    } else if (PyLong_CheckExact(object)) {
      one->kind = FieldValue::Kind::kDigits;
      held->push_back(py::str(value));
      one->text = View(held->back());
    } else if (PyFloat_CheckExact(object)) {
      one->kind = FieldValue::Kind::kReal;
      one->real = PyFloat_AS_DOUBLE(object);
    } else {
      return value.is_none();
    }
    return true;
  }

 private:
  // Adds a value. False: it became a list, the last of held_.
  bool TakeValue(const py::handle& value, bool in_list) {
    FieldValue one;
    if (!IsPlain(value, &held_, &one)) return TakeOther(value, in_list);
    given_.push_back(one);
    return true;
  }

  bool TakeOther(const py::handle& value, bool in_list) {
    held_.push_back(plain_(value, at_, in_list));
    const py::object made = held_.back();
    if (PyList_CheckExact(made.ptr())) return false;
    if (!PyTuple_CheckExact(made.ptr())) return TakeValue(made, in_list);
    const py::tuple parts = made;
    FieldValue one;
    one.kind = parts[1].cast<bool>() ? FieldValue::Kind::kText : FieldValue::Kind::kDigits;
    held_.push_back(parts[0]);
    one.text = View(held_.back());
    given_.push_back(one);
    return true;
  }

  const Fields& fields_;
  const bool ignore_;
  const py::object plain_;
  Stamps* const stamps_;
  std::string text_;
  std::vector<std::string> cells_;
  std::vector<FieldValue> given_;
  std::vector<py::object> held_;  // own the texts of given_
  std::map<std::string, int64_t> unknown_;
  size_t count_ = 0, at_ = 0;
};

// The text of a value of a plain type, as Fields::AppendText.
std::string TextOf(const py::object& value, const std::string& use, bool columnar) {
  std::vector<py::object> held;
  FieldValue one;
  if (!FieldLines::IsPlain(value, &held, &one)) throw py::type_error("not a plain value");
  std::string text;
  ThrowIfError(Fields::AppendText(one, Fields::UseOf(use), columnar, &text));
  return text;
}

// The memory of out, (B, width). Not an Array, which may be a copy.
float* RoomOf(py::array_t<float, py::array::c_style>& out, size_t n, size_t width) {
  if (SizeOf(out) != n * width) {
    ThrowIfError(Error(Code::kInvalidArgument, "out has room for %zu floats, expected %zu * %zu",
                       SizeOf(out), n, width));
  }
  return out.mutable_data();
}

// feasigns (nnz) uint64, offsets (B * S + 1) int32, dense (B, W) or None, weights (nnz) or None.
// out: (B, width), an array of the caller that should be reused: the page faults of new memory cost
// more than the lookups of a small batch.
void Fill(const ModelInputs& inputs, const Array<uint64_t>& feasigns, const Array<int32_t>& offsets,
          const std::optional<Array<float>>& dense, const std::optional<Array<float>>& weights,
          py::array_t<float, py::array::c_style>& out) {
  const size_t slots = inputs.slots(), n = SizeOf(offsets);
  const size_t instances = slots == 0 || n == 0 ? 0 : (n - 1) / slots;
  const size_t floats = dense.has_value() ? SizeOf(*dense) : 0;
  if (instances * slots + 1 != n || floats != instances * inputs.dense_width()) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "%zu offsets and %zu dense floats: expected B * %zu + 1 and B * %zu", n,
                       floats, slots, inputs.dense_width()));
  }
  float* const to = RoomOf(out, instances, inputs.width());
  if (weights.has_value()) CheckSize("weights", SizeOf(*weights), SizeOf(feasigns));
  const ModelInputs::Lists lists = {feasigns.data(), offsets.data(),
                                    weights.has_value() ? weights->data() : nullptr,
                                    dense.has_value() ? dense->data() : nullptr};
  const size_t nnz = SizeOf(feasigns);
  const py::gil_scoped_release release;
  ThrowIfError(inputs.Check(lists, instances, nnz));
  ThrowIfError(inputs.Fill(lists, instances, to));
}

// Raises what a request for a user is answered with.
void ThrowIfRefused(const Status& status) {
  const char* name = nullptr;
  if (status.code() == Code::kInvalidArgument) name = "DataError";
  if (status.code() == Code::kNotFound) name = "HistoryMissing";
  if (name == nullptr) return ThrowIfError(status);
  const py::object type = py::module_::import("paddlebox.errors").attr(name);
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

// The tensors of a request by name: views of its memory.
py::dict TensorsOf(const py::object& request) {
  py::dict tensors;
  for (const paddlebox_tensor& tensor : request.cast<const UserRequest&>().tensors()) {
    const std::vector<py::ssize_t> shape(tensor.shape, tensor.shape + tensor.rank);
    const char* const type = tensor.type == PADDLEBOX_FLOAT32 ? "float32"
                             : tensor.type == PADDLEBOX_INT32 ? "int32"
                                                              : "int64";
    tensors[tensor.name] = py::array(py::dtype(type), shape, tensor.data, request);
  }
  return tensors;
}

void BindUsers(py::module_& module) {
  py::class_<Stamps>(module, "Stamps")
      .def(py::init([](const ModelInputs& inputs, bool labels) {
             return std::make_unique<Stamps>(*inputs.users(), labels);
           }),
           py::keep_alive<1, 2>(), py::arg("inputs"), py::arg("labels"));
  py::class_<Histories>(module, "Histories").def(py::init<size_t>(), py::arg("budget_bytes"));
  py::class_<UserRequest>(module, "UserRequest")
      .def(py::init([](const ModelInputs& inputs, Histories* histories, const py::bytes& user,
                       uint64_t after) {
             auto begun = UserRequest::Begin(inputs, histories, user, after);
             ThrowIfRefused(begun.status());
             return std::move(begun.value());
           }),
           py::keep_alive<1, 2>(), py::keep_alive<1, 3>(), py::arg("inputs"), py::arg("histories"),
           py::arg("user"), py::arg("after"))
      .def("prepare",
           [](UserRequest& self, const ParsedChunk& events, const Stamps& of_events,
              const ParsedChunk& candidates, const Stamps& of_candidates) {
             Status status;
             {
               const py::gil_scoped_release release;
               status = self.Prepare(events, of_events, candidates, of_candidates);
             }
             ThrowIfRefused(status);
           })
      .def_property_readonly("tensors", &TensorsOf)
      .def("keep", [](UserRequest& self, const Array<float>& made) {
        const py::gil_scoped_release release;
        ThrowIfError(self.Keep(made.data(), SizeOf(made)));
      });
  module.attr("MOST_NAME") = kMostName;
}

}  // namespace

void BindLibrary(py::module_& module) {
  py::class_<Fields>(module, "Fields")
      .def(py::init([](const std::string& plan) {
        return std::make_unique<Fields>(ValueOrThrow(Fields::Of(Parsed(plan))));
      }))
      .def("place", [](const Fields& self, const std::string& name) { return self.Place(name); });
  py::class_<FieldLines>(module, "FieldLines")
      .def(py::init<const Fields&, bool, py::object, Stamps*>(), py::keep_alive<1, 2>(),
           py::keep_alive<1, 5>(), py::arg("fields"), py::arg("ignore"), py::arg("plain"),
           py::arg("stamps"))
      .def("add", &FieldLines::Add)
      .def_property_readonly("text", &FieldLines::text)
      .def_property_readonly("count", &FieldLines::count)
      .def_property_readonly("unknown", &FieldLines::unknown);
  module.def("reworded", &Fields::Reworded);
  module.def("text_of", &TextOf, py::arg("value"), py::arg("use"), py::arg("columnar"));
  py::class_<ModelInputs>(module, "ModelInputs")
      .def(py::init([](const std::string& feed, const std::vector<const ServeTable*>& tables) {
             std::unique_ptr<ModelInputs> inputs = ValueOrThrow(ModelInputs::Of(Parsed(feed)));
             ThrowIfError(inputs->SetTables(tables));
             return inputs;
           }),
           py::keep_alive<1, 3>(), py::arg("feed"), py::arg("tables"))
      .def("fill", &Fill, py::arg("feasigns"), py::arg("offsets"), py::arg("dense"),
           py::arg("weights"), py::arg("out").noconvert())
      .def(
          "fill_parsed",
          [](const ModelInputs& self, const ParsedChunk& chunk,
             py::array_t<float, py::array::c_style>& out) {
            float* const to = RoomOf(out, chunk.instances, self.width());
            const py::gil_scoped_release release;
            ThrowIfError(self.Fill(chunk, to));
          },
          py::arg("chunk"), py::arg("out").noconvert())
      .def_property_readonly("width", &ModelInputs::width);
  BindUsers(module);
}

}  // namespace pbx
