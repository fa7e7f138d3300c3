// Models, and the memory of the files they come from.
#include "model/model.h"

#include "base/files/file.h"

namespace trireme::model {

void Model::release_pages() const {
  for (const auto& file : files) file->release_pages();
}

}  // namespace trireme::model
