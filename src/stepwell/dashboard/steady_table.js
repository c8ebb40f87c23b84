// NiceGUI makes a new component of every slot that is given as a template, at each change of anything on the page, so
// that the cells of such a slot are taken out and put in again: a link loses its focus, and a click between the two is
// lost. The slot is written here instead, once for all tables; its cells stay and change in place.
import { convertDynamicProperties } from "../../static/utils/dynamic_properties.js";

export default {
  template: `
    <q-table :columns="converted">
      <template #header-cell="props">
        <q-th :props="props" :tabindex="props.col.sortable ? 0 : null" :aria-sort="order(props.col)"
          @keydown.enter.prevent="sort(props)" @keydown.space.prevent="sort(props)">
          {{ props.col.label }}
        </q-th>
      </template>
      <template #body-cell="props">
        <q-td :props="props" :title="props.col.clip ? props.value : null">
          <a v-if="props.row[props.col.name + '_href']" :href="props.row[props.col.name + '_href']"
            class="nicegui-link">{{ props.value }}</a>
          <q-badge v-else-if="props.col.colours" outline :color="props.col.colours[props.value] || 'grey'">
            {{ props.value }}
          </q-badge>
          <template v-else>{{ props.value }}</template>
        </q-td>
      </template>
    </q-table>
  `,
  props: {
    columns: Array,
  },
  computed: {
    converted() {
      this.columns.forEach((column) => convertDynamicProperties(column, false));
      return this.columns;
    },
  },
  methods: {
    sort(props) {
      if (props.col.sortable) props.sort(props.col);
    },
    order(column) {
      const said = (column.__thClass || "").split(" ");
      if (!said.includes("sorted")) return null;
      return said.includes("sort-desc") ? "descending" : "ascending";
    },
  },
};
