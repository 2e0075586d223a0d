// The tables: a filter, sorting by the buttons in the header, pages of a hundred rows. All rows come with the page, as the
// text that browsers without scripts show; only visible rows become elements, so that 40,000 rows cost little.
"use strict";
(() => {
    const PAGE = 100;
    const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'" };
    const data = JSON.parse(document.getElementById("data").textContent);
    const order = new Intl.Collator("en", { numeric: true }).compare;

    // A cell of a row, from its tag on.
    const cell = (row, column) => "<td" + row.split(/<t[hd]/)[column + 1];
    const text = html => html.replace(/<[^>]*>/g, "").replace(/&(amp|lt|gt|quot|#x27);/g, (_, name) => ENTITIES[name]);

    function number(html) {
        const value = /^[^>]* data-v="([^"]*)"/.exec(html)?.[1] ?? text(html).replace(/[,%]/g, "");
        return value === "" ? NaN : Number(value);
    }

    // Cells without a number come last, or first when reversed.
    const size = (x, y) => Number.isNaN(x) - Number.isNaN(y) || x - y;

    function sorted(rows, column, numeric) {
        const [key, compare] = numeric ? [number, size] : [text, order];
        const keyed = rows.map(row => [key(cell(row, column)), row]);
        return keyed.sort((a, b) => compare(a[0], b[0])).map(([, row]) => row);
    }

    function prepare(source) {
        const [begin, middle, end] = source.textContent.split(/(?<=<tbody>)\n|\n(?=<\/tbody>)/);
        const place = source.parentElement;
        place.innerHTML = begin + end;
        const table = place.firstElementChild;
        const body = table.tBodies[0];
        let rows = middle ? middle.split("\n") : [];
        const tools = document.getElementById(table.dataset.tools);
        const filter = tools.querySelector("input");
        const kind = tools.querySelector("select");
        const status = tools.querySelector("output");
        const [back, forth] = tools.querySelectorAll("button");
        let shown = rows, page = 0;

        function draw() {
            const pages = Math.max(1, Math.ceil(shown.length / PAGE));
            page = Math.min(Math.max(page, 0), pages - 1);
            body.innerHTML = shown.slice(page * PAGE, (page + 1) * PAGE).join("");
            back.disabled = page === 0;
            forth.disabled = page === pages - 1;
            const whole = `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "row" : "rows"}`;
            status.value = `${shown.length.toLocaleString("en")} of ${whole}, page ${page + 1} of ${pages}`;
        }

        function choose() {
            const wanted = filter.value.toLowerCase();
            const type = kind ? kind.value : "";
            shown = rows.filter(row => (!wanted || text(cell(row, 0)).toLowerCase().includes(wanted))
                && (!type || text(cell(row, 1)) === type));
            page = 0;
            draw();
        }

        Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
            const button = head.querySelector("button");
            if (!button) return;
            button.disabled = false;
            button.addEventListener("click", () => {
                const up = head.getAttribute("aria-sort") !== "ascending";
                for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
                head.setAttribute("aria-sort", up ? "ascending" : "descending");
                rows = sorted(rows, column, head.classList.contains("number"));
                if (!up) rows.reverse();
                choose();
            });
        });
        filter.addEventListener("input", choose);
        if (kind) kind.addEventListener("change", choose);
        back.addEventListener("click", () => { page -= 1; draw(); });
        forth.addEventListener("click", () => { page += 1; draw(); });
        draw();
    }

    const dark = matchMedia("(prefers-color-scheme: dark)");

    function style() {
        const colours = getComputedStyle(document.documentElement);
        const [text, line, bar] = ["--text", "--line", "--bar"].map(name => colours.getPropertyValue(name).trim());
        // The smallest value must differ from a blank on light and dark pages.
        const viridis = { scheme: "viridis", extent: dark.matches ? [0.3, 1] : [0.9, 0] };
        return {
            background: "transparent",
            axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line,
                labelSeparation: 6 },
            legend: { labelColor: text, titleColor: text, orient: "bottom", columns: 6, symbolLimit: 60,
                labelSeparation: 6 },
            title: { color: text },
            view: { stroke: "transparent" },
            text: { fill: text },
            rect: { stroke: line, strokeWidth: 0.5 },
            range: { heatmap: viridis, ordinal: viridis,
                ramp: { scheme: "blues", extent: dark.matches ? [1, 0.1] : [0.1, 1] } },
            rule: { color: bar }, bar: { color: bar }, point: { color: bar, opacity: 1 },
        };
    }

    const views = new Map();

    async function draw(id, extra) {
        const place = document.getElementById(id);
        const spec = structuredClone(data.charts[id]);
        if (spec.vconcat) for (const track of spec.vconcat) track.width = Math.max(place.clientWidth - 24, 200);
        spec.datasets = { ...data.sets, ...extra };
        spec.config = style();
        const old = views.get(id);
        const made = await vegaEmbed(place, spec, { actions: false, renderer: "canvas" });
        if (old) old.finalize();
        views.set(id, made);
    }

    function histogram(at) {
        const tensor = data.tensors[at];
        document.getElementById("histogram-of").textContent = tensor.name;
        const count = tensor.bins.length;
        const step = (tensor.high - tensor.low) / count;
        if (count === 1) {  // a constant is one bar, with room beside it
            const low = tensor.low, room = Math.abs(low) / 50 || 0.02;
            const bins = [[-10, -1, 0], [-1, 1, tensor.bins[0]], [1, 10, 0]].map(([begin, end, count]) =>
                ({ begin: low + begin * room, end: low + end * room, low, high: low, count }));
            return draw("histogram", { bins });
        }
        const bins = tensor.bins.map((n, i) => {
            const [low, high] = [i, i + 1].map(at => tensor.low + at * step);
            return { begin: low, end: high, low, high, count: n };
        });
        return draw("histogram", { bins });
    }

    let chosen = data.first;

    async function everything() {
        for (const id of Object.keys(data.charts)) {
            if (id === "histogram") await histogram(chosen);
            else await draw(id, {});
        }
        document.documentElement.dataset.drawn = "yes";
    }

    document.querySelectorAll(".scroll > noscript").forEach(prepare);
    document.addEventListener("click", event => {
        const button = event.target.closest("button[data-tensor]");
        if (!button) return;
        chosen = Number(button.dataset.tensor);
        histogram(chosen);
        document.getElementById("histogram-title").scrollIntoView({ block: "nearest" });
    });
    dark.addEventListener("change", everything);
    let width = innerWidth, later = 0;
    addEventListener("resize", () => {
        if (innerWidth === width) return;
        width = innerWidth;
        clearTimeout(later);
        later = setTimeout(everything, 200);
    });
    everything();
})();
